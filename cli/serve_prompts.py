"""Prompts: a built-in set that is the same everywhere, or the lines of a file.

Every prompt of a run is another one, and differs from its first words on: servers keep the KV cache of beginnings they
have seen, and a prompt that was asked before would get its first token without any work. Tasks are ordinary ones, since
random words route a mixture of experts, and feed speculative decoding, as no user's text does.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

TASKS = (
    "Explain {0} to somebody who has never heard of it, step by step.",
    "Write a letter to a colleague about {0}: what it is, why it matters, what is still unknown.",
    "List ten facts about {0}, with a sentence of reason for each.",
    "Tell a short story in which {0} decides how it ends.",
    "Compare {0} with {1}: what they have in common, where they differ, which is older.",
    "Write a Python program that simulates {0}, and explain each function.",
    "Plan a lesson of one hour about {0}, with questions and answers.",
    "Give arguments for and against the claim that {0} is more useful than {1}.",
)
TOPICS = (
    "a water mill", "the tides", "sorting letters", "a suspension bridge", "bread dough", "the seasons", "a library",
    "railway signals", "photosynthesis", "a pocket watch", "map projections", "the printing press", "beehives",
    "volcanoes", "a sailing boat", "the human ear", "glass making", "a chess opening", "migrating birds", "clouds",
    "a vegetable garden", "the telegraph", "salt", "earthquakes", "a lighthouse", "crystals", "the postal service",
    "a steam engine", "sleep", "coral reefs", "the calendar", "paper", "a thermostat", "glaciers", "dice", "wool",
)  # fmt: skip
SUBJECTS = ("the town", "our neighbour", "a traveller", "the old teacher", "the captain", "a young doctor")
ACTS = (
    "looked at the river for a long time", "wrote down what had been said", "closed the door and lit the lamp",
    "asked for another cup of tea", "counted the boats in the harbour", "found the road blocked by snow",
    "sold two horses at the market", "kept the letter in a wooden box", "heard the bell from across the field",
)  # fmt: skip
ENDS = (
    "before the rain began", "without a word", "as on every other day", "although it was late", "for the first time",
    "while the others waited", "and nobody was surprised", "and then went home", "because the work was done",
)  # fmt: skip
GOLDEN = (
    "Name the planets of the solar system in order of their distance from the sun, with one fact about each.",
    "What is 17 times 23? Show the calculation step by step, then give the result.",
    "Write a Python function that returns the n-th Fibonacci number without recursion.",
    "Translate into French, German and Spanish: The train to the coast leaves at half past seven in the morning.",
    "Count from one to forty in words, separated by commas.",
    "Explain in three sentences why the sky is blue and sunsets are red.",
    'Give a JSON object that describes a book with the keys "title", "author", "year" and "chapters".',
    "Name the capitals of France, Japan, Egypt, Brazil, Canada and Australia, one on a line.",
)
"""Asked for golden answers: facts, arithmetic, code, structure, where a sound model is sure of most of its tokens."""


@dataclass(frozen=True)
class Prompts:
    """Where prompts come from. ``lines`` is empty for the built-in set."""

    seed: int
    words: int
    lines: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What two runs must share to be compared: the built-in set's version, or the digest of a file's lines."""
        if not self.lines:
            return "built-in 1"
        return "file sha256:" + hashlib.sha256("\0".join(self.lines).encode()).hexdigest()[:16]

    def text(self, number: int) -> str:
        """The prompt of that number."""
        if self.lines:
            return self.lines[number % len(self.lines)]
        return built_in(self.seed, number, self.words)


def built_in(seed: int, number: int, words: int) -> str:
    """A prompt of about ``words`` words: notes that fill it up, then a task. Equal arguments give equal text."""
    chosen = random.Random(f"{seed}/{number}")  # noqa: S311 - no secret, but the same everywhere
    task = chosen.choice(TASKS).format(*chosen.sample(TOPICS, 2))
    opening = f"Case {number} of series {seed}. Notes of the day:"
    closing = f"Leave the notes aside. {task}"
    room = words - len(opening.split()) - len(closing.split())
    notes: list[str] = []
    while len(notes) < room:
        sentence = f"{chosen.choice(SUBJECTS)} {chosen.choice(ACTS)} {chosen.choice(ENDS)}."
        notes += (sentence[0].upper() + sentence[1:]).split()
    kept = list(islice(notes, max(room, 0)))
    if kept:
        kept[-1] = kept[-1].rstrip(".") + "."
    return " ".join([opening, *kept, closing])


def load(path: Path) -> tuple[str, ...]:
    """A file's prompts: one a line, or in ``*.jsonl`` a string or ``{"prompt": ...}`` a line. Raises ValueError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if path.suffix == ".jsonl":
        found: Sequence[str] = [
            _json_prompt(path, number, line) for number, line in enumerate(lines, 1) if line.strip()
        ]
    else:
        found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise ValueError(f"{path}: holds no prompt")
    return tuple(found)


def _json_prompt(path: Path, number: int, line: str) -> str:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}: line {number} is no JSON: {error}") from error
    text = data.get("prompt") if isinstance(data, dict) else data
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f'{path}: line {number} has neither a text nor {{"prompt": a text}}')
    return text
