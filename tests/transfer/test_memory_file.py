"""Export and import of a chat with its memory, and damaged or hostile files."""

import io
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Conversation
from kvchat.chat.turn.imported_memory import ImportTestResult
from kvchat.kvstore.savepoint import Bounds, RestoreMiss, RestorePlan, StoreRefused
from kvchat.system.concurrency import Stopped
from kvchat.text.reasons import Reason, ReasonCode
from kvchat.transfer.importing import ImportReport, import_paths
from kvchat.transfer.memory_file import (
    MAGIC,
    NoSavedMemory,
    PassphraseNeeded,
    describe_import,
    encrypt,
    export_with_memory,
    is_memory_file,
)
from tests.kvstore.store_bench import HYBRID, WINDOW, Bench, Model
from tests.systems import has_mode
from tests.transfer.library import everything, made_conversation, open_library, quick_keys

SECRET = "correct horse, 正しい馬"
TOKENS = tuple(range(1, 701))
EITHER = ["", SECRET]


@dataclass
class Home:
    database: Database
    bench: Bench

    def import_file(self, file: Path, passphrase: str = "") -> ImportReport:
        return import_paths(self.database, [file], store=self.bench.store, passphrase=passphrase)

    def blocks(self) -> list[str]:
        return sorted(path.name for path in (self.bench.folder / "blocks").rglob("*") if path.is_file())


Made = Callable[..., Home]


@pytest.fixture(autouse=True)
def keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("slow") is None:
        quick_keys(monkeypatch)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Made]:
    homes: list[Home] = []

    def made(name: str, model: Model = WINDOW) -> Home:
        (tmp_path / name).mkdir()
        homes.append(Home(open_library(tmp_path / name), Bench(tmp_path / name / "store", model)))
        return homes[-1]

    yield made
    for home in homes:
        home.bench.store.close()
        home.database.close()


@pytest.fixture
def here(make: Made) -> tuple[Home, Conversation]:
    home = make("here", replace(WINDOW, row_size=256))
    chat = made_conversation(home.database)
    for length in (300, 700):
        home.bench.save(chat.id, TOKENS[:length])
    return home, chat


def exported(home: Home, chat: Conversation, target: Path, passphrase: str = "") -> Path:
    export_with_memory(home.database, home.bench.folder, chat.id, target, passphrase)
    return target


@pytest.mark.parametrize("passphrase", EITHER)
@pytest.mark.parametrize("model", [WINDOW, HYBRID])
def test_memory_comes_back_byte_for_byte(make: Made, tmp_path: Path, model: Model, passphrase: str) -> None:
    here, there = make("here", model), make("there", model)
    chat = made_conversation(here.database)
    for length in (300, 700):
        here.bench.save(chat.id, TOKENS[:length])
    file = exported(here, chat, tmp_path / "chat.kvchat", passphrase)
    assert has_mode(file, 0o600), "it contains the chat"
    assert (is_memory_file(file), file.read_bytes().startswith(MAGIC)) == (True, bool(passphrase))
    report = there.import_file(file, passphrase)
    assert (report.imported, report.problems) == ((chat.id,), ())
    assert everything(there.database) == everything(here.database)
    assert there.blocks() == here.blocks()
    for length in (300, 700):
        again = there.bench.restore((*TOKENS[:length], 9999), can_cut=False, conversation=chat.id)
        assert again == model.slot_file(TOKENS[:length])
    assert isinstance(there.bench.find(TOKENS, conversation="another"), RestoreMiss), "only its chat may use it"
    assert [chat.imported for chat in there.bench.inventory.usage().conversations] == [True]
    assert there.bench.inventory.verify().is_clean
    [memory] = report.memories
    assert (memory.n_tokens, memory.conversation_id) == (700, chat.id)
    refused = there.import_file(file, passphrase)
    assert (refused.imported, len(refused.existing), refused.memories) == ((), 1, ())
    assert "was not imported because the chat already exists" in refused.notes[0]
    assert there.bench.inventory.usage().save_points == 2
    freed = there.bench.inventory.delete_imported(chat.id)
    assert (freed > 0, there.bench.inventory.usage().save_points) == (True, 0)


def test_file_is_a_plain_tar(here: tuple[Home, Conversation], tmp_path: Path) -> None:
    with tarfile.open(exported(*here, tmp_path / "chat.kvchat")) as archive:
        names = archive.getnames()
    assert names[:2] == ["chats.json", "memory.json"]
    assert sorted(name.removeprefix("blocks/") for name in names[2:]) == here[0].blocks()
    with pytest.raises(NoSavedMemory):
        exported(here[0], made_conversation(here[0].database), tmp_path / "another.kvchat")


@pytest.mark.slow
def test_encrypted_file_reveals_nothing(here: tuple[Home, Conversation], make: Made, tmp_path: Path) -> None:
    file, there = exported(*here, tmp_path / "chat.kvchat", SECRET), make("there")
    for part in (b"plant", b"chats.json", here[1].id.encode(), SECRET.encode(), b"tiny"):
        assert part not in file.read_bytes()
    for passphrase, fault in (("", "requires a passphrase"), ("wrong", "Wrong passphrase")):
        with pytest.raises(PassphraseNeeded, match=fault):
            there.import_file(file, passphrase)
    assert (there.database.conversations(), there.blocks()) == ([], [])


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("passphrase", EITHER)
@pytest.mark.parametrize("damage", ["cut off", "a byte changed", "its end cut off"])
def test_chat_is_imported_without_damaged_memory(
    here: tuple[Home, Conversation], make: Made, tmp_path: Path, damage: str, passphrase: str
) -> None:
    file, there = exported(*here, tmp_path / "chat.kvchat", passphrase), make("there")
    content = file.read_bytes()
    assert len(content) > 300_000, "the damage must be after the chat"
    damaged = {
        "cut off": content[: len(content) // 2],
        "a byte changed": flipped(content, len(content) // 2),
        "its end cut off": content[:-1500],
    }
    file.write_bytes(damaged[damage])
    report = there.import_file(file, passphrase)
    assert report.imported == (here[1].id,)
    assert report.memories == ()
    assert "the chat was imported without its memory" in report.problems[0]
    assert (there.blocks(), there.bench.inventory.usage().save_points) == ([], 0)


def repacked(file: Path, change: Callable[[str, bytes], list[tuple[str, bytes]]]) -> None:
    out = io.BytesIO()
    with tarfile.open(file) as archive, tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as new:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            for name, data in change(member.name, content.read()):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                new.addfile(info, io.BytesIO(data))
    file.write_bytes(out.getvalue())


@pytest.mark.parametrize(
    "change",
    [
        lambda name, data: [(name.replace("blocks/", "../../"), data)],
        lambda name, data: [(name.replace("blocks/", "/tmp/"), data)],
        lambda name, data: [(name, data + b"more" if name.startswith("blocks/") else data)],
        lambda name, data: [(name, data), ("blocks/" + "ab" * 32, b"unasked")],
        lambda name, data: [(name, data)] * (1 + name.startswith("blocks/")),
        lambda name, data: [] if name == "memory.json" else [(name, data)],
        lambda name, data: [(name, b"{" * 100_000 if name == "memory.json" else data)],
        lambda name, data: [] if name.startswith("blocks/") else [(name, data)],
    ],
    ids=["names up", "names elsewhere", "longer", "unasked", "twice", "no manifest", "deep", "no blocks"],
)
def test_hostile_files_do_no_harm(
    here: tuple[Home, Conversation], make: Made, tmp_path: Path, change: Callable[[str, bytes], list[tuple[str, bytes]]]
) -> None:
    file, there = exported(*here, tmp_path / "chat.kvchat"), make("there")
    repacked(file, change)
    before = sorted(tmp_path.rglob("*.*"))
    report = there.import_file(file)
    assert (report.imported, report.memories, len(report.problems)) == ((here[1].id,), (), 1)
    assert there.blocks() == []
    assert sorted(path for path in tmp_path.rglob("*.*") if "there" not in path.parts) == [
        path for path in before if "there" not in path.parts
    ]


def test_interrupted_or_oversized_import_leaves_nothing(
    here: tuple[Home, Conversation], make: Made, tmp_path: Path
) -> None:
    file, there, full = exported(*here, tmp_path / "chat.kvchat"), make("there"), make("full")

    def stop(done: int, total: int) -> None:
        if total and done > total // 2:
            raise Stopped

    with pytest.raises(Stopped):
        import_paths(there.database, [file], stop, store=there.bench.store)
    full.bench.inventory.set_bounds(Bounds(quota=100_000, free_floor=0))
    report = full.import_file(file)
    assert report.imported == (here[1].id,)
    assert "but the storage limit is" in report.problems[0]
    head = tarfile.TarInfo("chats.json")
    head.size = 7 << 30
    file.write_bytes(head.tobuf(tarfile.USTAR_FORMAT) + bytes(1000))
    report = there.import_file(file)
    assert (report.imported, len(report.problems)) == ((), 1)
    assert (there.database.conversations(), there.blocks(), full.blocks()) == ([], [], [])


@pytest.mark.parametrize("passphrase", EITHER)
def test_failed_export_leaves_nothing(here: tuple[Home, Conversation], tmp_path: Path, passphrase: str) -> None:
    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise Stopped

    (home, chat), target = here, tmp_path / "chat.kvchat"
    with pytest.raises(Stopped):
        export_with_memory(home.database, home.bench.folder, chat.id, target, passphrase, stop)
    if Path("/dev/full").exists():
        with pytest.raises(OSError, match="space"), open("/dev/full", "wb") as full:  # noqa: PTH123
            encrypt([bytes(3_000_000)], full, SECRET) if passphrase else full.write(bytes(3_000_000))
    block = next(path for path in (home.bench.folder / "blocks").rglob("*") if path.is_file())
    block.chmod(0o600)
    block.write_bytes(flipped(block.read_bytes(), 0))
    with pytest.raises(StoreRefused):
        exported(home, chat, target, passphrase)
    assert not [path for path in tmp_path.iterdir() if "kvchat" in path.name]


@pytest.mark.slow
@pytest.mark.parametrize("passphrase", ["", SECRET])
def test_memory_use_is_small(make: Made, tmp_path: Path, passphrase: str) -> None:
    """50 MB are exported and imported with less than 10 MB of memory."""
    model = Model(layers=4, row_size=4096)
    here, there = make("here", model), make("there", model)
    chat = made_conversation(here.database)
    here.bench.save(chat.id, tuple(range(1, 1537)))
    tracemalloc.start()
    try:
        file = exported(here, chat, tmp_path / "chat.kvchat", passphrase)
        assert there.import_file(file, passphrase).memories
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.stat().st_size > 40_000_000
    assert most < 10_000_000


def test_import_descriptions(here: tuple[Home, Conversation], make: Made, tmp_path: Path) -> None:
    there = make("there")
    [memory] = there.import_file(exported(*here, tmp_path / "chat.kvchat")).memories
    assert "A test on this computer succeeded: 698 of 700 tokens" in describe_import(memory, ImportTestResult(698, 700))
    assert describe_import(memory, ImportTestResult(is_pending=True)).endswith(
        "kvchat tests it with the next message in this chat."
    )
    text = describe_import(
        memory, ImportTestResult(reason=Reason(ReasonCode.OTHER_ENGINE, {"differences": (Reason(ReasonCode.MODEL),)}))
    )
    assert text.endswith("This computer must reprocess the chat: it was saved with a different configuration (model).")
    assert isinstance(there.bench.find((*TOKENS, 9999), conversation=here[1].id), RestorePlan)
