"""Reasons as data: a code with the values of its sentence's places. They are stored, compared and told to programs so.

The table of codes is the one place where a reason is worded: a sentence may change, a code may not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvchat.words.language import N_, _, ended, listed, number


class ReasonCode(StrEnum):
    """All reasons: the code, its sentence, and the sentence without values where there is one."""

    sentence: str
    general: str

    def __new__(cls, code: str, sentence: str = "", general: str = "") -> ReasonCode:
        member = str.__new__(cls, code)
        member._value_, member.sentence, member.general = code, sentence, general
        return member

    ERROR = "error", "{message}"  # in the words of the system, the engine or an error

    # Why a prompt was read: nothing fits
    FIRST_REPLY = "first-reply", N_("the first reply")
    NOTHING_SAVED = "nothing-saved", N_("nothing is kept of this chat")
    NOTHING_ALIKE = "nothing-alike", N_("nothing that is kept begins like it")
    BEGINS_DIFFERENTLY = "begins-differently", N_("what is saved begins differently ({shared} tokens in common)")
    CANNOT_GO_BACK = (
        "cannot-go-back",
        N_("the chat was changed before what was kept of it, and this model cannot go back"),
    )
    GOES_ON_OTHERWISE = (
        "goes-on-otherwise",
        N_("what is kept begins like it and goes on otherwise, and this model cannot go back"),
    )
    OTHER_MODEL = "other-model", N_("saved with another model")
    OTHER_SETTINGS = "other-settings", N_("saved with other engine settings ({settings})")
    INDEX_LOST = "index-lost", N_("the list of what is kept was lost or damaged, and a new one begun")
    INDEX_LOST_ON = "index-lost-on", N_("{reason}; the list of what was kept was lost on {day}")

    # What differs between two engines
    MODEL = "model", N_("model")
    KV_TYPE_K = "kv_type_k", N_("KV type of K")
    KV_TYPE_V = "kv_type_v", N_("KV type of V")
    FLASH_ATTENTION = "flash_attention", N_("flash attention")
    STREAMS = "streams", N_("number of KV streams")
    ROPE = "rope", N_("context size, which changes how this model counts positions")
    OPTIONS = "options", N_("extra engine arguments")
    BUILD = "build", N_("engine build")

    # Its memory is lost
    SET_ASIDE = "set-aside", N_("its memory was set aside: {reason}"), N_("its memory was set aside")
    BLOCK_DAMAGED = "block-damaged", N_("a block was damaged ({error})")
    PRUNED = "pruned", N_("its memory was deleted to stay within the limit on the disk")
    PRUNED_BY_USER = "pruned-by-user", N_("its memory was deleted to make room")
    EXPIRED = "expired", N_("its memory was deleted because it had not been used for long")
    DELETED_MEANWHILE = "deleted-meanwhile", N_("its memory was deleted meanwhile")
    NOT_FINISHED = "not-finished", N_("kvchat ended before its memory was stored")
    NOT_WAITED_FOR = "not-waited-for", N_("kvchat was told not to wait until it was saved")

    # It could not be loaded
    NOT_READABLE = "not-readable", N_("what is kept could not be read ({error})")
    NOT_STAGED = "not-staged", N_("its file could not be put into the engine's folder ({error})")
    PART_DAMAGED = "part-damaged", N_("a part of its memory was damaged ({error})")
    NO_STORE = "no-store", N_("the memory of chats cannot be kept for now")
    NEEDS_PROJECTOR = (
        "needs-projector",
        N_("what is kept of it goes on with pictures, and the model was loaded without what it sees with"),
    )
    NOT_WORTH_IT = "not-worth-it", N_("reading it again takes no longer than loading it")
    TOO_SHORT = "too-short", N_("this engine cannot restore a chat that is shorter than the model’s sliding window")
    NO_RESTORING = "no-restoring", N_("chats cannot be remembered with this engine and model")
    TOO_LARGE_NOW = "too-large-now", N_("what is kept of it is larger than the context is now")
    DIED_OVER_RESTORE = "died-over-restore", N_("the engine died while it loaded its memory")
    FAILED_OVER_USE = "failed-over-use", N_("the engine failed when it used its memory")
    REFUSED = "refused", N_("the engine refused its memory: {message}")
    LOADED_LESS = "loaded-less", N_("the engine loaded {loaded} of {tokens} tokens")
    OTHER_ENGINE = "other-engine", N_("it was made with another {differences}")
    LONGER_THAN_CONTEXT = "longer-than-context", N_("it has {tokens} tokens, and the context is of {context_size}")

    # It was loaded and not used
    HOLLOW = "hollow", N_("hollow restore: the engine accepted {accepted} tokens and then reused {reused} of them")
    REUSED_LESS = "reused-less", N_("the engine reused {reused} of {held} tokens it had")
    NOT_REUSED = "not-reused", N_("the engine did not reuse what it held")
    PURGED = "purged", N_("the engine gave up what it held, to make room for others")
    RENDERS_OTHERWISE = "renders-otherwise", N_("the engine made another prompt of it than it had told")

    # What is known of restoring
    UNUSED = "unused", N_("the engine loaded a chat and did not use it")
    UNUSED_AGAIN = "unused-again", N_("the engine loaded {count} chats in a row and used neither")
    TOO_SLOW_TO_TRY = "too-slow-to-try", N_("the engine is too slow to try it out beforehand")
    NOT_TRIED = "not-tried", N_("it could not be tried out beforehand ({reason})")
    IN_USE = "in-use", N_("it was not tried out beforehand, because another program may be using the server")
    OUT_OF_REACH = "out-of-reach", N_("the server keeps its states where kvchat cannot reach them")
    DIED_OVER_TRIAL = "died-over-trial", N_("the engine died when it was tried out")
    WINDOW_AS_CONTEXT = "window-as-context", N_("the model's sliding window is as long as the context")
    TAKES_LONG = "takes-long", N_("that would take long with this model")
    NEVER_REUSES = "never-reuses", N_("the engine reads a short chat again even if it has it already")
    LITTLE_ROOM = "little-room", N_("too little room for its files")
    NOTHING_LOADED = "nothing-loaded", N_("nothing was loaded")
    USED_LESS = "used-less", N_("the engine accepted {accepted} tokens and then used {used} of them")
    NO_PARTS = "no-parts", N_("part of what was saved is of no use: {reason}")
    NO_WAY_BACK = "no-way-back", N_("the engine cannot go back: it used {used} of {tokens} tokens")
    NEEDS_SWA_FULL = (
        "needs-swa-full",
        N_("{reason}; --swa-full among the engine's extra arguments may change that, at the price of memory"),
    )

    # Why nothing was kept
    NEVER_SAVED = "never-saved", N_("you chose never to save this chat")
    OVER_LIMIT = "over-limit", N_("it takes {size}, and the limit on the disk is {limit}")
    DISK_NEARLY_FULL = "disk-nearly-full", N_("the disk is nearly full: {free} are free, and {floor} must stay free")
    DISK_FULL = "disk-full", N_("the disk is full")
    NOT_WRITTEN = "not-written", N_("it could not be written ({error})")
    NO_FILE = "no-file", N_("the engine said that it saved, but there is no file")
    FILE_BROKEN = "file-broken", N_("the engine's file is broken ({error})")
    FILE_CUT = "file-cut", N_("the engine's file is not whole: it wrote {written}, {there} are there")
    NOTHING_HELD = "nothing-held", N_("the engine had nothing of this chat")
    OTHERS_HELD = "others-held", N_("the engine holds something else: {tokens} tokens, {shared} of them this chat’s")
    HELD_LESS = "held-less", N_("the engine held {held} tokens instead of {tokens}")
    BLOCKS_DELETED = "blocks-deleted", N_("its blocks were deleted again and again while they were written")
    FILE_CHANGED = "file-changed", N_("its file was changed while it was being stored")
    INDEX_DAMAGED = "index-damaged", N_("the list of what is kept was damaged, and a new one begun")
    INDEX_NOT_WRITTEN = "index-not-written", N_("the list of what is kept could not be written ({error})")
    DIED_OVER_SAVE = "died-over-save", N_("the engine died while it saved the system prompt")
    NEXT_MESSAGE = "next-message", N_("the next message came first")

    # Why nothing is read ahead
    READ_AHEAD_OFF = "read-ahead-off", N_("that is switched off")
    FOREIGN_ENGINE = "foreign-engine", N_("the engine is not kvchat’s own")
    ON_BATTERY = "on-battery", N_("this computer runs on its battery")
    COSTS_MORE = "costs-more", N_("going back from it would take longer than reading it")

    # Why a program's prompt parts from the one before
    OTHER_PROMPT = "other-prompt", N_("the prompt is another one")
    OTHER_CONVERSATION = "other-conversation", N_("another conversation begins")
    OTHER_WAY = (
        "other-way",
        N_("the conversation went another way from message {number} ({role}) on"),
        N_("the conversation went another way"),
    )
    BILLING_HEADER = "billing-header", N_("the billing header")
    DATE_IN_SYSTEM = "date-in-system", N_("the date in the system prompt")
    DATE_IN_TOOLS = "date-in-tools", N_("the date in the tool list")
    DATE_IN_FIRST = "date-in-first", N_("the date in the first message")
    DATE_IN_MESSAGE = "date-in-message", N_("the date in message {number} ({role})"), N_("the date in a message")
    DATE_IN_TEMPLATE = "date-in-template", N_("the date that the model’s template adds")
    TIME_IN_SYSTEM = "time-in-system", N_("the time in the system prompt")
    TIME_IN_TOOLS = "time-in-tools", N_("the time in the tool list")
    TIME_IN_FIRST = "time-in-first", N_("the time in the first message")
    TIME_IN_MESSAGE = "time-in-message", N_("the time in message {number} ({role})"), N_("the time in a message")
    TIME_IN_TEMPLATE = "time-in-template", N_("the time that the model’s template adds")
    FOLDER_IN_SYSTEM = "folder-in-system", N_("the working folder in the system prompt")
    FOLDER_IN_TOOLS = "folder-in-tools", N_("the working folder in the tool list")
    FOLDER_IN_FIRST = "folder-in-first", N_("the working folder in the first message")
    FOLDER_IN_MESSAGE = (
        "folder-in-message",
        N_("the working folder in message {number} ({role})"),
        N_("the working folder in a message"),
    )
    FOLDER_IN_TEMPLATE = "folder-in-template", N_("the working folder in the template")
    PATH_IN_SYSTEM = "path-in-system", N_("the path of a file in the system prompt")
    PATH_IN_TOOLS = "path-in-tools", N_("the path of a file in the tool list")
    PATH_IN_FIRST = "path-in-first", N_("the path of a file in the first message")
    PATH_IN_MESSAGE = (
        "path-in-message",
        N_("the path of a file in message {number} ({role})"),
        N_("the path of a file in a message"),
    )
    PATH_IN_TEMPLATE = "path-in-template", N_("the path of a file in the template")
    GIT_STATUS = "git-status", N_("the git status in the system prompt")
    SYSTEM_CHANGED = "system-changed", N_("the system prompt was changed")
    OTHER_OPTIONS = (
        "other-options",
        N_("other options of the request: {options}"),
        N_("other options of the request"),
    )
    TEMPLATE_DROPS_REASONING = (
        "template-drops-reasoning",
        N_("reasoning of earlier turns was dropped by the template"),
    )
    TEMPLATE_REWORDS = "template-rewords", N_("the template put the same messages in other words")
    TOOLS_CHANGED = "tools-changed", N_("tool list changed: {changes}"), N_("tool list changed")
    TOOLS_ADDED = "tools-added", N_("{tools} added")
    TOOLS_REMOVED = "tools-removed", N_("{tools} removed")
    TOOLS_REDESCRIBED = "tools-redescribed", N_("{tools} described anew")
    MORE = "more", N_("{count} more")
    TOOLS_REORDERED = "tools-reordered", N_("tools listed in another order")
    PROGRAM_DROPS_REASONING = (
        "program-drops-reasoning",
        N_("reasoning of earlier turns was left out by the program"),
    )
    REMINDER_MOVES = "reminder-moves", N_("a <system-reminder> that moves")
    RESULTS_CLEARED = (
        "results-cleared",
        N_("old results of tools were cleared, from message {number} ({role}) on"),
        N_("old results of tools were cleared"),
    )
    REPOSITORY_MAP = "repository-map", N_("the map of the repository")
    FILES_IN_CHAT = "files-in-chat", N_("the files in the chat")
    SURROUNDINGS = "surroundings", N_("what the program tells of its surroundings")
    LEFT_OUT = "left-out", N_("earlier messages left out: {count}"), N_("earlier messages left out")
    SUMMARISED = "summarised", N_("earlier messages were summarised (compaction)")
    PUT_IN = (
        "put-in",
        N_("something was put in before message {number} ({role})"),
        N_("something was put in before a message"),
    )
    EDITED = "edited", N_("message {number} ({role}) was edited"), N_("an earlier message was edited")


@dataclass(frozen=True)
class Reason:
    """A code and the values of its sentence's places: numbers, names, reasons, and tuples of names and reasons."""

    code: ReasonCode
    places: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def words(self) -> str:
        return self._worded(_, number, listed)

    @property
    def in_a_sentence(self) -> str:
        """The translated words with a capital letter and a full stop."""
        words = self.words
        return ended(words[:1].upper() + words[1:])

    @property
    def english(self) -> str:
        """The words for other programs, logs and JSON."""
        return self._worded(str, "{:,}".format, ", ".join)

    def _worded(
        self,
        translated: Callable[[str], str],
        figure: Callable[[int], str],
        joined: Callable[[Iterable[str]], str],
    ) -> str:
        def worded(value: Any) -> str:
            if isinstance(value, Reason):
                return value._worded(translated, figure, joined)
            if isinstance(value, int):
                return figure(value)
            return value if isinstance(value, str) else joined(map(worded, value))

        sentence = self.code.sentence if self.places else self.code.general or self.code.sentence
        return translated(sentence).format(**{name: worded(value) for name, value in self.places.items()})


def reason_of(stored: object) -> Reason | None:
    """Read what `dataclasses.asdict` made of a reason; None for anything else, and for a code of another version."""
    with suppress(TypeError, ValueError, LookupError, AttributeError, RecursionError):
        reason = _place(stored)
        if isinstance(reason, Reason) and reason.english:
            return reason
    return None


def _place(stored: Any) -> Any:
    match stored:
        case {"code": code, "places": places}:
            return Reason(ReasonCode(code), {str(name): _place(value) for name, value in places.items()})
        case [*values]:
            return tuple(map(_place, values))
        case int() | str():
            return stored
    raise TypeError
