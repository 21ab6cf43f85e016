"""Conversion of untrusted server responses to results of limited size."""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import mcp_types as types
from jsonschema import Draft202012Validator, SchemaError

from kvchat.text.formatting import format_size
from kvchat.text.language import N_, _, format_number
from kvchat.text.safe_text import safe_prose
from kvchat.tools.mcp.server import PARAMETER, Attachment, Prompt, PromptArgument, Resource
from kvchat.tools.tool import MAX_RESULT_CHARS, Tool, ToolResult

MAX_TOOLS = 512
MAX_LISTED = 2_000  # prompts or resources
MAX_PICTURES, MAX_PICTURE_BYTES = 8, 8_000_000  # of all images of a result
MAX_LINKS = 100
_MAX_ARGUMENTS = 20  # of a prompt or template
MAX_DESCRIPTION_CHARS, MAX_SCHEMA_CHARS, MAX_NAME_CHARS = 8_000, 64_000, 128
_NAME = re.compile(rf"[\w./:-]{{1,{MAX_NAME_CHARS}}}")  # no quotes and spaces: it stands in a question to the user
_PICTURES = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM")


def clean(text: str | None, limit: int = 1_000) -> str:
    """Return a server's text without hidden characters, cut to `limit` characters."""
    return safe_prose((text or "")[:limit]).strip()


@dataclass
class Listing:
    """The usable tools of a server, and sentences about the others."""

    tools: list[Tool] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def convert_tools(server: str, listed: Sequence[types.Tool], is_complete: bool) -> Listing:
    listing = Listing()
    names: set[str] = set()
    refused: list[str] = []
    for tool in listed[:MAX_TOOLS]:
        if tool.name in names or not _is_usable(tool):
            refused.append(clean(tool.name, 40) or "?")
            continue
        names.add(tool.name)
        hints = tool.annotations
        read_only = bool(hints and hints.read_only_hint) and not (hints and hints.destructive_hint)
        description = clean(tool.description or tool.title, MAX_DESCRIPTION_CHARS)
        listing.tools.append(Tool(server, tool.name, description, tool.input_schema, read_only))
    if refused:
        shown = ", ".join(refused[:10])
        text = N_("{count} tools have an invalid name or schema and are not offered: {names}")
        listing.problems.append(_(text, count=len(refused), names=shown))
    if not is_complete or len(listed) > MAX_TOOLS:
        listing.problems.append(
            _("The server has too many tools. Only the first {count} are offered.", count=MAX_TOOLS)
        )
    return listing


def _is_usable(tool: types.Tool) -> bool:
    name, schema = tool.name, tool.input_schema
    if not _NAME.fullmatch(name):
        return False
    try:
        if len(json.dumps(schema)) > MAX_SCHEMA_CHARS or schema.get("type", "object") != "object":
            return False
        Draft202012Validator.check_schema(schema)
    except (SchemaError, ValueError, TypeError, RecursionError):
        return False
    return True


def convert_result(result: types.CallToolResult) -> ToolResult:
    parts: list[str] = []
    pictures: list[bytes] = []
    links: list[tuple[str, str]] = []
    for block in result.content:
        match block:
            case types.TextContent():
                parts.append(block.text)
            case types.ImageContent():
                parts.append(_add_picture(pictures, block.data, block.mime_type))
            case types.EmbeddedResource(resource=types.TextResourceContents() as document):
                parts.append(f"{document.uri}\n{document.text}")
            case types.EmbeddedResource(resource=types.BlobResourceContents() as blob):
                note = _add_picture(pictures, blob.blob, blob.mime_type or "")
                parts.append(f"{blob.uri} {note}".rstrip())
            case types.ResourceLink():
                name = clean(block.title or block.name)
                if str(block.uri).startswith(("https://", "http://")):
                    links.append((name, clean(str(block.uri))))
                parts.append(f"{name}: {block.uri}")
            case _:
                parts.append(_("[{kind} is not shown]", kind=clean(getattr(block, "mime_type", "") or block.type)))
    text = "\n\n".join(filter(None, parts))
    if not text and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False, indent=1)
    return ToolResult(cut(text), bool(result.is_error), tuple(pictures), tuple(links[:MAX_LINKS]))


def cut(text: str, limit: int = MAX_RESULT_CHARS) -> str:
    """Return the text; if it is too long, its beginning with a note."""
    text = text.encode("utf-8", "replace").decode()  # JSON may have lone surrogates
    if len(text) <= limit:
        return text
    note = _("[{shown} of {total} characters are shown]", shown=format_number(limit), total=format_number(len(text)))
    return f"{text[: limit - len(note) - 2]}\n\n{note}"


def _add_picture(pictures: list[bytes], data: str, media_type: str) -> str:
    """Add an image file and return "", or return a note for the model about the problem."""
    size = len(data) * 3 // 4
    if not media_type.startswith("image/"):
        return _("[{kind} is not shown]", kind=f"{clean(media_type)}, {format_size(size)}")
    if len(pictures) >= MAX_PICTURES:
        return _("[only the first {count} images are shown]", count=MAX_PICTURES)
    if sum(map(len, pictures)) + size > MAX_PICTURE_BYTES:
        return _("[an image of {size} is too large]", size=format_size(size))
    try:
        picture = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        picture = b""
    if not picture.startswith(_PICTURES):
        return _("[an image is damaged]")
    pictures.append(picture)
    return ""


def convert_prompts(listed: Iterable[types.Prompt]) -> list[Prompt]:
    return [
        Prompt(
            prompt.name,
            clean(prompt.title or prompt.name, MAX_NAME_CHARS),
            clean(prompt.description),
            tuple(
                PromptArgument(argument.name, clean(argument.description), bool(argument.required))
                for argument in prompt.arguments or ()
            ),
        )
        for prompt in listed
        if len(prompt.arguments or ()) <= _MAX_ARGUMENTS
    ]


def convert_resources(listed: Iterable[types.Resource]) -> list[Resource]:
    return [
        Resource(
            str(resource.uri),
            clean(resource.title or resource.name, MAX_NAME_CHARS),
            clean(resource.description),
            clean(resource.mime_type, MAX_NAME_CHARS),
            resource.size,
        )
        for resource in listed
    ]


def convert_templates(listed: Iterable[types.ResourceTemplate]) -> list[Resource]:
    """Return the templates whose expressions are all of the forms {name} and {+name} of RFC 6570."""
    converted = []
    for template in listed:
        uri, names = template.uri_template, [name for _plus, name in PARAMETER.findall(template.uri_template)]
        if names and len(names) <= _MAX_ARGUMENTS and "{" not in PARAMETER.sub("", uri):
            title, description = clean(template.title or template.name, MAX_NAME_CHARS), clean(template.description)
            arguments = tuple(PromptArgument(name, "", required=True) for name in dict.fromkeys(names))
            media_type = clean(template.mime_type, MAX_NAME_CHARS)
            converted.append(Resource(uri, title, description, media_type, None, arguments))
    return converted


def convert_prompt(name: str, result: types.GetPromptResult) -> list[Attachment]:
    """Return a prompt's messages as one text, and its pictures; other contents become notes."""
    name = clean(name, MAX_NAME_CHARS)
    contents = convert_result(types.CallToolResult(content=[message.content for message in result.messages]))
    text = Attachment(f"{name}.txt", contents.text.encode(), "text/plain")
    return [text, *(Attachment(name, picture, "image/*") for picture in contents.pictures)]


def convert_resource(result: types.ReadResourceResult) -> list[Attachment]:
    attachments = []
    for content in result.contents[:MAX_LINKS]:
        name = clean(str(content.uri).rstrip("/").rpartition("/")[2] or str(content.uri), MAX_NAME_CHARS)
        if isinstance(content, types.TextResourceContents):
            data = content.text.encode("utf-8", "replace")
        else:
            try:
                data = base64.b64decode(content.blob, validate=True)
            except (binascii.Error, ValueError):
                continue
        attachments.append(Attachment(name, data, clean(content.mime_type, MAX_NAME_CHARS)))
    return attachments
