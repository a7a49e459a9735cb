"""/etc/grub.d/42_gpuhost: the fallback's menu entry, and the one-shot on the ESP where GRUB can't write its own.

Pure: grub.cfg's text in, the script's text out.
"""

from __future__ import annotations

import os
import re

from .boot import FALLBACK_ID, BootEntry
from .errors import stop

ESP_ENV = "gpuhost/grubenv"
"""The environment file with the request, from the ESP's root."""

HEAD = """#!/bin/sh
# Managed by gpuhost while a kernel upgrade is under way; see /var/lib/gpuhost/roll.json. It goes with the roll's end.
exec tail -n +4 "$0"
"""
# The request is obeyed only where it could be cleared: on an ESP that can't be written the old kernel boots.
ESP_ONE_SHOT = """
insmod part_gpt
insmod fat
search --no-floppy --fs-uuid --set=gpuhost_esp {uuid}
if [ -n "${{gpuhost_esp}}" ]; then
  load_env --file=(${{gpuhost_esp}})/{env} gpuhost_next
  if [ -n "${{gpuhost_next}}" ]; then
    set gpuhost_entry="${{gpuhost_next}}"
    set gpuhost_next=
    save_env --file=(${{gpuhost_esp}})/{env} gpuhost_next
    set gpuhost_next=unread
    load_env --file=(${{gpuhost_esp}})/{env} gpuhost_next
    if [ -z "${{gpuhost_next}}" ]; then
      set default="${{gpuhost_entry}}"
      set boot_once=true
    fi
  fi
fi
"""


def render(cfg: str, entry: BootEntry, copies: str, esp_uuid: str | None) -> str:
    """The script. The fallback's entry is the running kernel's own, with the paths of its copies.

    cfg       grub.cfg as it is
    copies    name of the folder beside the kernels that holds the copies
    esp_uuid  file system UUID of the ESP that holds the request; None where GRUB's own block does
    """
    words, body = menuentry(cfg, entry.id)
    for path in (entry.linux, *entry.initrd):
        name = os.path.basename(path)
        body = re.sub(rf"(?<=/){re.escape(name)}(?=\s|$)", f"{copies}/{name}", body, flags=re.MULTILINE)
    text = f"menuentry 'gpuhost fallback: {entry.release}' {words}--id {FALLBACK_ID} {{\n{body}}}\n"
    if esp_uuid is not None:
        text += ESP_ONE_SHOT.format(uuid=esp_uuid, env=ESP_ENV)
    return HEAD + text


def menuentry(text: str, entry_id: str) -> tuple[str, str]:
    """A menu entry by the last part of its id path: its options but for the id, and the lines between its braces.

    grub-mkconfig writes one statement a line, and a closing brace on a line of its own. The options go along because
    ``--unrestricted`` is one: without it a GRUB that has a password asks for it. Raises Stop where there is no such
    entry.
    """
    name = entry_id.rsplit(">", 1)[-1]
    lines = text.splitlines(keepends=True)
    for index, line in enumerate(lines):
        if line.lstrip().startswith("menuentry ") and name in re.findall(r"'([^']*)'", line):
            end = next((at for at in range(index + 1, len(lines)) if lines[at].strip() == "}"), None)
            if end is not None:
                options = re.search(r"'\s+((?:--\S+\s+(?:[^-$'\s]\S*\s+)?)*)(?:\$menuentry_id_option|--id)\s", line)
                return options[1] if options else "", "".join(lines[index + 1 : end])
    raise stop("boot.fallback_missing", entry_id, "no menu entry in grub.cfg")
