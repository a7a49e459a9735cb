"""Text that no sound model writes is found, and text that one writes is not."""

from __future__ import annotations

import random

import pytest

from gpuhost_cli.serve_garbled import garbled
from gpuhost_cli.serve_prompts import GOLDEN, built_in

ENGLISH = (
    "The sky is blue because air scatters short waves of light more than long ones. At sunset the light passes through "
    "more air, so most of the blue is gone and red is left. "
)
SOUND = {
    "english": ENGLISH * 2,
    "short": "!!!!!",
    "planets": "1. Mercury\n2. Venus\n3. Earth\n4. Mars\n5. Jupiter\n6. Saturn\n7. Uranus\n8. Neptune\n",
    "count": "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen",
    "numbers": ", ".join(str(number) for number in range(1, 80)),
    "table": "| planet | moons |\n|--------------------------------|-------------------|\n| Mars | 2 |\n" * 2,
    "rule": "=" * 60 + "\nTitle\n" + "-" * 60 + "\n",
    "code": "def fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n\n\n"
    + " " * 40,
    "translations": "Le train part à sept heures. Der Zug fährt um halb acht. El tren sale a las siete. 汽车 Поезд",
    "greek letters": "The angle α, the rate β and the shift Δ, with δ and λ as before, in 東京 by Достоевский. " * 3,
    "japanese": "空が青いのは、空気が短い波長の光をよりよく散乱するからです。夕方には赤い光が残ります。" * 2,
    "emoji": "Great! 🎉🎉🎉🎉🎉🎉 Here we go 🚀🚀🚀 with three more of them.",
    "cut in the middle": ENGLISH + "\ufffd",
    "hash": "sha256: 3b1f0e9a77c0d2e4415c6a8f92bb07de5f60718293a4b5c6d7e8f90123456789",
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_text(name: str) -> None:
    assert garbled(SOUND[name], loops=True) == ""


@pytest.mark.parametrize("number", range(40))
def test_prompts_are_sound(number: int) -> None:
    assert garbled(built_in(3, number, 300), loops=True) == ""
    assert garbled(GOLDEN[number % len(GOLDEN)], loops=True) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("!" * 64, "'!' 64 times in a row"),
        (ENGLISH + "!" * 30, "'!' 30 times in a row"),
        ("0" * 200, "'0' 200 times in a row"),
        ("a\ufffdb\ufffdc\ufffd hello there", "3 of 18 characters are replacement characters"),
        ("hello\x00\x01\x02 there and more", "3 of 23 characters are control characters"),
        ("hello \ue000\ue001\ue002 there!", "3 of 16 characters are private or unassigned characters"),
        (" привет 世界的人 عالم hello สวัสดี קלוע and so on", "letters of 6 scripts: arabic, cjk, cyrillic, hebrew"),
    ],
)
def test_damage(text: str, why: str) -> None:
    assert garbled(text).startswith(why)


def test_a_loop_is_damage_only_where_it_is_asked_for() -> None:
    text = ENGLISH + " and so it goes" * 30
    assert garbled(text) == ""
    assert "goes" in garbled(text, loops=True)
    assert garbled(text, loops=True).endswith("again and again at its end")
    assert garbled(ENGLISH + " and so it goes" * 4, loops=True) == ""  # a refrain


def test_random_letters_of_all_scripts_are_a_salad() -> None:
    chosen = random.Random(5)
    blocks = [(0x61, 26), (0x430, 32), (0x5D0, 26), (0x627, 28), (0x4E00, 5000), (0xAC00, 5000), (0x905, 40)]
    text = "".join(chr(begin + chosen.randrange(size)) for begin, size in chosen.choices(blocks, k=80))
    assert garbled(text).startswith("letters of ")
