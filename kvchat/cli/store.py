"""`kvchat store`: show, prune, verify and forget save points."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kvchat.chat.prepared.documents import all_prepared
from kvchat.chat.record.database import Database
from kvchat.cli.arguments import JsonOptions, ProgramOptions, PruneOptions
from kvchat.cli.owned import Commands
from kvchat.cli.terminal import columns, padded, print_out, print_result, show_progress, to_json, width
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import ConversationUsage, PrunePlan, StoreUsage, VerifyReport, program_of, program_owner
from kvchat.kvstore.store import BlockStore
from kvchat.session.restore_cost import PrefillSpeed
from kvchat.settings import Settings
from kvchat.store_service import (
    describe_capacity,
    long_chat_bytes,
    open_store,
    plan_with_times,
    saved_models,
    with_times,
)
from kvchat.system.paths import Paths
from kvchat.text.formatting import TimeRange, format_duration, format_estimate, format_size, format_timestamp, one_line
from kvchat.text.language import N_, _, format_number, join_list, plural
from kvchat.text.safe_text import safe_prose

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Titles = Mapping[str, str]  # by conversation id
SecondsSaved = Mapping[str, float]  # seconds by conversation id
MAX_TITLE_LENGTH = 40  # characters


@dataclass(frozen=True)
class _StoreContext:
    paths: Paths
    settings: Settings
    store: BlockStore
    titles: Titles
    saved: SecondsSaved


async def _run_on_store(commands: Commands, run: Callable[[_StoreContext], int]) -> int:
    """Call `run` in a thread; without a runtime, open only the store, so damaged chats do not matter."""

    def run_with(store: BlockStore) -> int:
        titles: dict[str, str] = {}
        saved: SecondsSaved = {}
        with contextlib.suppress(KvchatError), closing(Database(paths.database)) as database:
            titles = {conversation.id: conversation.title for conversation in database.conversations()}
            titles |= {prepared.owner: _("Prepared: {name}", name=prepared.name) for prepared in all_prepared(database)}
            saved = database.seconds_saved()
        return run(_StoreContext(paths, settings, store, titles, saved))

    async with commands.opening() as runtime:
        paths, settings = commands.paths, await asyncio.to_thread(lambda: commands.settings)
        # Use the app's warm-tier budget: without it, memory left by a killed kvchat would be discarded.
        store = runtime.save_points.store if runtime else await asyncio.to_thread(open_store, paths, settings)
        try:
            return await asyncio.to_thread(run_with, store)
        finally:
            if runtime is None:
                await asyncio.to_thread(store.close)


def _with_times(paths: Paths, usage: StoreUsage) -> StoreUsage:
    speeds = {model: PrefillSpeed() for model in saved_models(usage)}
    with contextlib.suppress(KvchatError), closing(Database(paths.database)) as database:
        for model, speed in speeds.items():
            speed.recall(database.prefill_timings(model))
    return with_times(usage, speeds)


async def show_usage(options: JsonOptions, commands: Commands) -> int:
    def run(opened: _StoreContext) -> int:
        usage = dataclasses.replace(
            _with_times(opened.paths, opened.store.inventory.usage()), chat_bytes=long_chat_bytes(opened.settings)
        )
        titles, saved = opened.titles, opened.saved
        chats = [
            _with_title(chat.conversation_id, titles, chat) | {"seconds_saved": saved.get(chat.conversation_id, 0.0)}
            for chat in usage.conversations
        ]
        fields = dataclasses.asdict(usage) | {"conversations": len(chats), "by_conversation": chats}
        fields["shared_savings_bytes"] = _shared_savings(usage)
        return print_result(options.as_json, fields, usage_lines(usage, titles, saved))

    return await _run_on_store(commands, run)


async def prune(options: PruneOptions, commands: Commands) -> int:
    def run(opened: _StoreContext) -> int:
        store, titles, target = opened.store, opened.titles, options.target_bytes
        plan = plan_with_times(
            store.inventory.plan_prune(target), _with_times(opened.paths, opened.store.inventory.usage())
        )
        if not options.as_json:
            print_out("\n".join(plan_lines(plan, titles, target, dry_run=options.dry_run)))
        freed = store.inventory.prune(plan) if plan.save_point_ids and not options.dry_run else 0
        if options.as_json:
            fields = {
                "dry_run": options.dry_run,
                "target_bytes": target,
                "save_points": len(plan.save_point_ids),
                "bytes_freed": plan.bytes_freed if options.dry_run else freed,
                "bytes_left": plan.bytes_left,
                "reading": plan.reprocessing,
                "by_conversation": [_with_title(chat.conversation_id, titles, chat) for chat in plan.conversations],
            }
            print_out(to_json(fields))
        elif freed:
            print_out(_("Freed {freed}.", freed=format_size(freed)))
        return 0

    return await _run_on_store(commands, run)


async def verify(options: JsonOptions, commands: Commands) -> int:
    def run(opened: _StoreContext) -> int:
        report = opened.store.inventory.verify(partial(show_progress, _("Verifying:")))
        left = {chat.conversation_id: chat.save_points for chat in opened.store.inventory.usage().conversations}
        losses = [
            _with_title(lost.conversation_id, opened.titles, lost)
            | {"reason": lost.reason.english, "code": lost.reason.code}
            | {"save_points_left": left.get(lost.conversation_id, 0), "cold": not left.get(lost.conversation_id)}
            for lost in report.losses
        ]
        figures = {"blocks": report.blocks, "bytes": report.bytes, "bad_blocks": report.bad_blocks}
        fields = figures | {"clean": report.is_clean, "by_conversation": losses}
        print_result(options.as_json, fields, report_lines(report, left, opened.titles))
        return 0 if report.is_clean else 1

    return await _run_on_store(commands, run)


async def forget(options: ProgramOptions, commands: Commands) -> int:
    """Delete a program's save points. Raises KvchatError if there are none."""

    def run(opened: _StoreContext) -> int:
        kept = opened.store.inventory.usage().conversations
        programs = sorted(filter(None, (program_of(chat.conversation_id) for chat in kept)))
        if options.program not in programs:
            there = join_list(programs) or _("No app has saved chat memory")
            raise KvchatError(
                _("There are no save points of an app named “{program}”", program=options.program), f"{there}.", ""
            )
        freed = opened.store.inventory.delete_conversation(program_owner(options.program))
        fields = {"program": options.program, "bytes_freed": freed}
        return print_result(options.as_json, fields, [_("Freed {freed}.", freed=format_size(freed))])

    return await _run_on_store(commands, run)


def usage_lines(usage: StoreUsage, titles: Titles, saved: SecondsSaved) -> list[str]:
    programs = [chat for chat in usage.conversations if program_of(chat.conversation_id)]
    chats = plural(len(usage.conversations) - len(programs), "{count} chat", "{count} chats")
    if programs:
        others = plural(len(programs), "{count} app", "{count} apps")
        chats = _("{chats} and {programs}", chats=chats, programs=others)
    sizes = {name: format_size(value) for name, value in vars(usage).items() if name.endswith("_bytes")}
    today, written = format_size(usage.bytes_written_today), format_size(usage.bytes_written)
    rows = [
        (_("Save points"), _("{save_points} in {chats}", save_points=format_number(usage.save_points), chats=chats)),
        (_("On disk"), _("{physical_bytes} of {quota_bytes} allowed", **sizes)),
        *([("", holds)] if (holds := describe_capacity(usage.quota_bytes, usage.chat_bytes)) else []),
        (
            _("Without sharing"),
            _(
                "{logical_bytes}; sharing saves {shared_savings}",
                shared_savings=format_size(_shared_savings(usage)),
                **sizes,
            ),
        ),
        (_("Unique rows"), format_size(usage.unique_rows_bytes)),
        (
            _("Written"),
            _(
                "{bytes_written_today} today, {bytes_written} in total",
                bytes_written_today=today,
                bytes_written=written,
            ),
        ),
        (_("Free disk space"), _("{free_bytes}; below {free_floor_bytes} nothing is saved", **sizes)),
    ]
    if programs:
        held = format_size(sum(chat.exclusive_bytes for chat in programs))
        allowed = _("{held} exclusive, of {programs_quota_bytes} allowed", held=held, **sizes)
        rows.append((_("API server"), allowed))
    broad = max(18, *(width(name) + 2 for name, _value in rows))
    lines = [f"{padded(name, broad)}{value}" for name, value in rows]
    if not usage.conversations:
        return lines
    return [*lines, "", *columns([_usage_row(chat, titles, saved) for chat in usage.conversations])]


def _usage_row(chat: ConversationUsage, titles: Titles, saved: SecondsSaved) -> tuple[str, ...]:
    choices = (
        (_("pinned"), chat.pinned),
        (_("never saved"), chat.never_save),
        (_("imported, not verified"), chat.imported),
    )
    marks = [word for word, is_so in choices if is_so]
    return (
        _title(chat.conversation_id, titles),
        plural(chat.save_points, "{count} save point", "{count} save points"),
        _("{exclusive_bytes} exclusive", exclusive_bytes=format_size(chat.exclusive_bytes)),
        _("{size} shared", size=format_size(chat.shared_bytes)),
        _("saved {time} so far", time=format_duration(1000 * saved.get(chat.conversation_id, 0.0))),
        _("last used {timestamp}", timestamp=format_timestamp(chat.last_used_at)),
        join_list(marks),
    )


def _shared_savings(usage: StoreUsage) -> int:
    return max(0, usage.logical_bytes - usage.physical_bytes)


def plan_lines(plan: PrunePlan, titles: Titles, target_bytes: int, *, dry_run: bool) -> list[str]:
    if not plan.save_point_ids:
        lines = [_("Nothing to delete: the save points use {bytes_left}.", bytes_left=format_size(plan.bytes_left))]
    else:
        verb, left = _("Would delete") if dry_run else _("Deleting"), format_size(plan.bytes_left)
        count = plural(len(plan.save_point_ids), "{count} save point", "{count} save points")
        freed, time = format_size(plan.bytes_freed), _format_reprocessing(plan.reprocessing)
        rows = [
            (
                _title(chat.conversation_id, titles),
                plural(chat.save_points, "{count} save point", "{count} save points"),
                format_size(chat.bytes_freed),
                ""
                if chat.save_points_left
                else _("time to reprocess: {rereading}", rereading=_format_reprocessing(chat.reprocessing)),
                _format_left(chat.save_points_left),
            )
            for chat in plan.conversations
        ]
        lines = [
            _("{verb} {count} ({size}); time to reprocess: {time}.", verb=verb, count=count, size=freed, time=time),
            *columns(rows),
            _("{size} would remain.", size=left) if dry_run else _("{size} remain.", size=left),
        ]
    if plan.bytes_left > target_bytes:
        sentence = N_("This is more than {target_bytes} because pinned save points and the index are not deleted.")
        lines.append(_(sentence, target_bytes=format_size(target_bytes)))
    return lines


def report_lines(report: VerifyReport, left: Mapping[str, int], titles: Titles) -> list[str]:
    blocks = plural(report.blocks, "{count} block", "{count} blocks")
    checked = _("{blocks} checked ({bytes})", blocks=blocks, bytes=format_size(report.bytes))
    found = (
        _("no damage found.")
        if report.is_clean
        else _("{count} damaged, deleted.", count=format_number(report.bad_blocks))
    )
    lines = [f"{checked}: {found}"]
    rows = [
        (
            _title(chat.conversation_id, titles),
            _("{save_points} lost", save_points=plural(chat.save_points, "{count} save point", "{count} save points")),
            _format_left(left.get(chat.conversation_id, 0)),
            chat.reason.text,
        )
        for chat in report.losses
    ]
    return lines + columns(rows)


def _with_title(conversation_id: str, titles: Titles, value: DataclassInstance) -> dict[str, Any]:
    fields = {"conversation_id": conversation_id, "title": titles.get(conversation_id)}
    return fields | dataclasses.asdict(value)


def _title(conversation_id: str, titles: Titles) -> str:
    program = program_of(conversation_id)
    title = _("App: {program}", program=program) if program else titles.get(conversation_id, conversation_id)
    title = one_line(safe_prose(title))
    return title if len(title) <= MAX_TITLE_LENGTH else title[: MAX_TITLE_LENGTH - 1] + "…"


def _format_left(save_points: int) -> str:
    return _("{count} left", count=format_number(save_points)) if save_points else _("none left")


def _format_reprocessing(time: TimeRange | None) -> str:
    return format_estimate(time) if time else _("unknown")
