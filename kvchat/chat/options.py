"""Options of a conversation: its model, system prompt and sampling; and presets.

Viewing a conversation does not load its model. After the first message, template options are fixed, and a new system
prompt copies the messages to a new branch; sampling can change at any time (`OptionsService`). Unset options come from
the settings, then from the model.
"""

import dataclasses
import json
import math
import uuid
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Attachment, Conversation, Role, new_message
from kvchat.chat.record.titles import NEW_TITLE
from kvchat.engine.api.wire import MAX_GRAMMAR_CHARS, MAX_NESTING, Sampling, nesting_depth
from kvchat.errors import KvchatError
from kvchat.session.host import TemplateOptions
from kvchat.text.language import N_, _, format_number, localize_number


class PermissionMode(Enum):
    """Tool calls that run without asking. Grants for single tools allow more."""

    ASK = "ask"  # none
    READ_ONLY = "read_only"  # those of tools that change nothing
    ALL = "all"


@dataclass(frozen=True)
class ChatOptions:
    """Options of a chat. The settings, the model or the engine supply those that are not set."""

    sampling: Sampling = field(default_factory=Sampling)
    template: TemplateOptions = ()  # fixed once a chat has begun: it changes the start of the prompt
    tools: tuple[str, ...] = ()  # for new chats, "SOURCE/NAME" or "SOURCE/*": tools to freeze
    permission: PermissionMode = PermissionMode.READ_ONLY


NO_OPTIONS = ChatOptions()


@dataclass(frozen=True)
class AnswerSettings:
    model: str | None = None  # path; None until the first message
    options: ChatOptions = NO_OPTIONS


class InvalidOptions(KvchatError):
    pass


class OutputFormatRejected(KvchatError):
    """The engine rejected the output format; only the engine knows which schemas and grammars it supports."""

    def __init__(self, engine_message: str) -> None:
        super().__init__(
            _("The engine does not support this chat's output format"),
            _("The engine reported: {said}.", said=engine_message),
            _("Your message is saved. Correct the grammar or schema in the chat settings (⋯), then try again."),
        )


@dataclass(frozen=True)
class OptionRange:
    label: str
    minimum: float
    maximum: float
    is_integer: bool = False

    def validation_error(self, value: float) -> str:
        if self.is_integer and value != int(value):
            return _("{words} must be a whole number.", words=_(self.label))
        if math.isfinite(value) and self.minimum <= value <= self.maximum:
            return ""
        least, most = (
            format_number(limit) if limit == int(limit) else localize_number(f"{limit:.10g}")
            for limit in (self.minimum, self.maximum)
        )
        return _("{words} must be between {least} and {most}.", words=_(self.label), least=least, most=most)


# Narrower than llama.cpp's limits: beyond these, models produce only noise.
RANGES: dict[str, OptionRange] = {
    "temperature": OptionRange(N_("Temperature"), 0, 2),
    "top_k": OptionRange("Top-k", 0, 1000, is_integer=True),
    "top_p": OptionRange("Top-p", 0, 1),
    "min_p": OptionRange("Min-p", 0, 1),
    "repeat_penalty": OptionRange(N_("Repeat penalty"), 0.5, 2),
    "presence_penalty": OptionRange(N_("Presence penalty"), -2, 2),
    "frequency_penalty": OptionRange(N_("Frequency penalty"), -2, 2),
    "seed": OptionRange(N_("Seed"), -1, 2**32 - 1, is_integer=True),  # llama.cpp's uint32_t; -1: random
    "max_tokens": OptionRange(N_("Max tokens"), 1, 2**24, is_integer=True),
}
MAX_STOP_WORDS = 16


def validate_options(options: ChatOptions) -> None:
    """Raise InvalidOptions for a schema that is not JSON or a grammar without root; the engine checks the rest."""
    sampling = options.sampling
    for name, bounds in RANGES.items():
        value = getattr(sampling, name)
        if value is not None and (why := bounds.validation_error(value)):
            raise InvalidOptions(why.removesuffix("."), "", _("Change the number, or leave the field empty."))
    if len(sampling.stop or ()) > MAX_STOP_WORDS or not all(sampling.stop or ()):
        title = _("Use at most {most_stops} stop words, none of them empty", most_stops=MAX_STOP_WORDS)
        raise InvalidOptions(title, "", _("Remove extra or empty stop words."))
    if sampling.json_schema and sampling.grammar:
        raise InvalidOptions(_("A JSON schema and a grammar cannot be used together"), "", _("Remove one of them."))
    text = (sampling.json_schema or "") + (sampling.grammar or "")
    if len(text) > MAX_GRAMMAR_CHARS or nesting_depth(text) > MAX_NESTING:
        advice = _("Use a shorter or simpler schema or grammar.")
        raise InvalidOptions(_("This output format is too long or too deeply nested"), "", advice)
    if sampling.json_schema:
        try:
            is_object = isinstance(json.loads(sampling.json_schema), dict)
        except (ValueError, RecursionError) as error:
            title, advice = _("The JSON schema is not valid JSON"), _("Correct it and try again.")
            raise InvalidOptions(title, f"{error}.", advice) from None
        if not is_object:
            advice = _("It must begin with { and end with }.")
            raise InvalidOptions(_("The JSON schema is not a JSON object"), "", advice)
    if sampling.grammar and "root" not in sampling.grammar:
        advice = _("Add a rule named root: root ::= …")
        raise InvalidOptions(_("The grammar has no rule named root"), "", advice)


def options_to_json(options: ChatOptions) -> str:
    sampling = {name: value for name, value in dataclasses.asdict(options.sampling).items() if value is not None}
    permission = options.permission.value if options.permission is not PermissionMode.READ_ONLY else ""
    parts = {"sampling": sampling, "template": dict(options.template), "tools": options.tools, "permission": permission}
    return json.dumps({name: part for name, part in parts.items() if part}) if any(parts.values()) else ""


def options_from_json(text: str) -> ChatOptions:
    try:
        stored = json.loads(text or "{}")
        template = stored.get("template", {}).items()
        sampling: dict[str, Any] = {}
        for name in (known.name for known in dataclasses.fields(Sampling)):
            if (value := stored.get("sampling", {}).get(name)) is None:
                continue
            if name in RANGES:
                sampling[name] = int(value) if RANGES[name].is_integer else float(value)
            else:
                sampling[name] = tuple(map(str, value)) if name == "stop" else str(value)
        choices = sorted((str(name), value) for name, value in template if isinstance(value, bool | str))
        tools, permission = tuple(map(str, stored.get("tools", ()))), stored.get("permission", PermissionMode.READ_ONLY)
        options = ChatOptions(Sampling(**sampling), tuple(choices), tools, PermissionMode(permission))
        validate_options(options)
        return options
    except (ValueError, TypeError, AttributeError, RecursionError, KvchatError):
        return ChatOptions()


@dataclass(frozen=True)
class Preset:
    """Options for new chats. `id` is empty until the preset is stored."""

    name: str
    system: str = ""
    model: str | None = None  # path; None: the model in use
    options: ChatOptions = NO_OPTIONS
    is_default: bool = False  # used for new chats
    id: str = ""


def presets(database: Database) -> list[Preset]:
    query = "SELECT name, system, model, options, is_default, id FROM presets ORDER BY name COLLATE NOCASE, name"
    return [
        Preset(name, system, model, options_from_json(options), bool(is_default), id)
        for name, system, model, options, is_default, id in database.rows(query)
    ]


def store_preset(database: Database, preset: Preset) -> Preset:
    """Insert or update a preset; a new default replaces the old one. Raises InvalidOptions and StorageFailed."""
    preset = replace(preset, id=preset.id or uuid.uuid4().hex, name=preset.name.strip() or "Preset")
    values = preset.name, preset.system, preset.model, options_to_json(preset.options), preset.is_default, preset.id
    with database.transaction() as db:
        if db.execute("SELECT 1 FROM presets WHERE name = ? AND id != ?", (preset.name, preset.id)).fetchone():
            title = _("A preset named “{name}” already exists", name=preset.name)
            raise InvalidOptions(title, "", _("Choose another name."))
        if preset.is_default:
            db.execute("UPDATE presets SET is_default = 0")
        columns = "name, system, model, options, is_default, id"
        db.execute(f"INSERT OR REPLACE INTO presets ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)
    return preset


def answer_settings(database: Database, conversation_id: str) -> AnswerSettings:
    for row in database.rows("SELECT model, options FROM conversations WHERE id = ?", (conversation_id,)):
        return AnswerSettings(row["model"], options_from_json(row["options"]))
    return AnswerSettings()


@dataclass(frozen=True)
class NewChat:
    """A chat stored together with its first message, so that a full disk leaves no empty chat."""

    title: str
    system: str = ""
    documents: tuple[Attachment, ...] = ()  # of the system prompt
    model: str | None = None  # path
    options: ChatOptions = NO_OPTIONS
    prepared: str | None = None  # id of the prepared set with these documents
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


def chat_from_preset(preset: Preset) -> NewChat:
    return NewChat(_(NEW_TITLE), preset.system, model=preset.model, options=preset.options)


def store_chat(database: Database, new: NewChat) -> Conversation:
    """Store the chat. Raises StorageFailed."""
    with database.transaction():
        conversation = database.create_conversation(new.title, id=new.id)
        if new.system or new.documents or new.options.tools:  # tools are frozen in the system prompt before the reply
            database.append_message(new_message(new.id, Role.SYSTEM, new.system, attachments=new.documents))
        statement = "UPDATE conversations SET model = ?, options = ?, prepared = ? WHERE id = ?"
        database.write(statement, (new.model, options_to_json(new.options), new.prepared, new.id))
    return conversation
