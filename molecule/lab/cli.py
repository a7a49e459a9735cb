"""tmp"""
import sys
from pathlib import Path
from .image import ensure_image
from .image_root import customize
def main():
    if sys.argv[1]=="customize":
        customize(Path(sys.argv[2]), Path(sys.argv[3]).read_text()); return 0
    print(ensure_image().folder); return 0
