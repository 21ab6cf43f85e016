"""`kvchat store`: show, prune, verify and forget save points."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

from kvchat.chat.prepared.documents import all_prepared
from kvchat.chat.record.database import Database
from kvchat.cli.arguments import JsonOptions, ProgramOptions, PruneOptions
from kvchat.cli.owned import CommandRunner
from kvchat.cli.terminal import (
    cell_width,
    format_columns,
    pad_to_width,
    pick_fields,
    print_out,
    print_result,
    show_progress,
    to_json,
)
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import ConversationUsage, PrunePlan, StoreUsage, VerifyReport, program_of
from kvchat.kvstore.store import BlockStore
from kvchat.session.restore_cost import PrefillSpeed
from kvchat.store_service import (
    describe_capacity,
    long_chat_bytes,
    open_store,
    plan_with_reprocessing_times,
    saved_models,
    with_reprocessing_times,
)
from kvchat.system.paths import Paths
from kvchat.text.formatting import TimeRange, format_duration, format_estimate, format_size, format_timestamp, one_line
from kvchat.text.language import N_, _, format_number, join_list, plural, punctuation
from kvchat.text.safe_text import safe_prose

T = TypeVar("T")
Titles = Mapping[str, str]  # by conversation id
SecondsSaved = Mapping[str, float]  # by conversation id
MAX_TITLE_LENGTH = 40  # characters


def _store_command(
    command: Callable[[T, CommandRunner, BlockStore], int],
) -> Callable[[T, CommandRunner], Awaitable[int]]:
    """Decorator: run a command on the save-point store, in a thread.

    If no runtime is open, only the store is opened, so that the command works even if the chats file is damaged.
    """

    async def run(options: T, runner: CommandRunner) -> int:
        async with runner.runtime_lock:
            runtime = runner.open_runtime
            # With a smaller memory budget than the app's, slot files left in memory by a killed kvchat would be lost.
            store = (
                runtime.save_points.store
                if runtime
                else await asyncio.to_thread(lambda: open_store(runner.paths, runner.settings))
            )
            try:
                return await asyncio.to_thread(command, options, runner, store)
            finally:
                if runtime is None:
                    await asyncio.to_thread(store.close)

    return run


def _read_chats(paths: Paths) -> tuple[Titles, SecondsSaved]:
    titles: dict[str, str] = {}
    saved: SecondsSaved = {}
    with contextlib.suppress(KvchatError), closing(Database(paths.database)) as database:
        titles = {chat.id: chat.title for chat in database.conversations()}
        titles |= {
            documents.owner: _("Prepared documents: {name}", name=documents.name)
            for documents in all_prepared(database)
        }
        saved = database.seconds_saved()
    return titles, saved


def _usage_with_times(paths: Paths, store: BlockStore) -> StoreUsage:
    usage = store.inventory.usage()
    speeds = {model: PrefillSpeed() for model in saved_models(usage)}
    with contextlib.suppress(KvchatError), closing(Database(paths.database)) as database:
        for model, speed in speeds.items():
            speed.add_earlier_samples(database.prefill_timings(model))
    return with_reprocessing_times(usage, speeds)


@_store_command
def show_usage(options: JsonOptions, runner: CommandRunner, store: BlockStore) -> int:
    usage = dataclasses.replace(_usage_with_times(runner.paths, store), chat_bytes=long_chat_bytes(runner.settings))
    titles, saved = _read_chats(runner.paths)
    names = "bytes save_points last_used_at exclusive_bytes shared_bytes tokens model pinned never_save imported"
    chats = [
        _json_fields(chat, titles, names)
        | {"reading": chat.reprocessing, "seconds_saved": saved.get(chat.conversation_id, 0.0)}
        for chat in usage.conversations
    ]
    sizes = "quota free free_floor logical physical unique_rows warm chat programs_quota other"
    names = " ".join(f"{name}_bytes" for name in sizes.split())
    fields = pick_fields(usage, f"{names} bytes_written bytes_written_today save_points staged problem")
    fields |= {"conversations": len(chats), "by_conversation": chats}
    fields["shared_savings_bytes"] = _shared_savings(usage)
    return print_result(options.as_json, fields, format_usage(usage, titles, saved))


@_store_command
def prune_store(options: PruneOptions, runner: CommandRunner, store: BlockStore) -> int:
    inventory, titles, target = store.inventory, _read_chats(runner.paths)[0], options.target_bytes
    plan = plan_with_reprocessing_times(inventory.plan_prune(target), _usage_with_times(runner.paths, store))
    if not options.as_json:
        print_out("\n".join(format_plan(plan, titles, target, dry_run=options.dry_run)))
    freed = inventory.prune(plan) if plan.save_point_ids and not options.dry_run else 0
    if options.as_json:
        fields = {
            "dry_run": options.dry_run,
            "target_bytes": target,
            "save_points": len(plan.save_point_ids),
            "bytes_freed": plan.bytes_freed if options.dry_run else freed,
            "bytes_left": plan.bytes_left,
            "reading": plan.reprocessing,
            "by_conversation": [
                _json_fields(chat, titles, "save_points bytes_freed save_points_left") | {"reading": chat.reprocessing}
                for chat in plan.conversations
            ],
        }
        print_out(to_json(fields))
    elif freed:
        print_out(_("Freed {freed}.", freed=format_size(freed)))
    return 0


@_store_command
def verify_store(options: JsonOptions, runner: CommandRunner, store: BlockStore) -> int:
    titles = _read_chats(runner.paths)[0]
    report = store.inventory.verify(partial(show_progress, _("Verifying:")))
    left = {chat.conversation_id: chat.save_points for chat in store.inventory.usage().conversations}
    losses = [
        _json_fields(loss, titles, "save_points")
        | {"reason": loss.reason.english, "code": loss.reason.code}
        | {"save_points_left": left.get(loss.conversation_id, 0), "cold": not left.get(loss.conversation_id)}
        for loss in report.losses
    ]
    figures = {"blocks": report.blocks, "bytes": report.bytes, "bad_blocks": report.bad_blocks}
    fields = figures | {"clean": report.is_clean, "by_conversation": losses}
    print_result(options.as_json, fields, format_verify_report(report, left, titles))
    return 0 if report.is_clean else 1


@_store_command
def forget_program(options: ProgramOptions, runner: CommandRunner, store: BlockStore) -> int:
    """Delete the save points of an app. Raises KvchatError if there are none."""
    owners = [chat.conversation_id for chat in store.inventory.usage().conversations]
    programs = sorted(filter(None, map(program_of, owners)))
    if options.program not in programs:
        title = _("There are no save points of an app named “{program}”", program=options.program)
        known_programs = join_list(programs) or _("No app has saved chat memory")
        raise KvchatError(title, f"{known_programs}.", "")
    freed = store.inventory.delete_program(options.program)
    fields = {"program": options.program, "bytes_freed": freed}
    return print_result(options.as_json, fields, [_("Freed {freed}.", freed=format_size(freed))])


@_store_command
def delete_program_memory(program: str, runner: CommandRunner, store: BlockStore) -> int:
    """Delete the save points of an app or device and return the bytes freed."""
    return store.inventory.delete_program(program)


def format_usage(usage: StoreUsage, titles: Titles, saved: SecondsSaved) -> list[str]:
    programs = [chat for chat in usage.conversations if program_of(chat.conversation_id)]
    chats = plural(len(usage.conversations) - len(programs), "{count} chat", "{count} chats")
    if programs:
        others = plural(len(programs), "{count} app", "{count} apps")
        chats = _("{chats} and {programs}", chats=chats, programs=others)
    sizes = {name: format_size(value) for name, value in vars(usage).items() if name.endswith("_bytes")}
    sizes |= {name: format_size(getattr(usage, name)) for name in ("bytes_written_today", "bytes_written")}
    sizes["shared_savings"] = format_size(_shared_savings(usage))
    rows = [
        (_("Save points"), _("{save_points} in {chats}", save_points=format_number(usage.save_points), chats=chats)),
        (_("On disk"), _("{physical_bytes} of {quota_bytes} allowed", **sizes)),
        *([("", capacity)] if (capacity := describe_capacity(usage.quota_bytes, usage.chat_bytes)) else []),
        (_("Without deduplication"), _("{logical_bytes}; deduplication saves {shared_savings}", **sizes)),
        (_("Unique data"), format_size(usage.unique_rows_bytes)),
        (_("Written"), _("{bytes_written_today} today, {bytes_written} in total", **sizes)),
        (_("Free disk space"), _("{free_bytes}; chat memory is not saved below {free_floor_bytes}", **sizes)),
    ]
    if programs:
        held = format_size(sum(chat.exclusive_bytes for chat in programs))
        rows.append((_("API server"), _("not shared: {held} of {programs_quota_bytes} allowed", held=held, **sizes)))
    label_width = max(18, *(cell_width(label) + 2 for label, _text in rows))
    lines = [f"{pad_to_width(label, label_width)}{text}" for label, text in rows]
    table = format_columns([_usage_row(chat, titles, saved) for chat in usage.conversations])
    return [*lines, "", *table] if table else lines


def _usage_row(chat: ConversationUsage, titles: Titles, saved: SecondsSaved) -> tuple[str, ...]:
    states = {
        _("always kept"): chat.pinned,
        _("never kept"): chat.never_save,
        _("imported, not verified"): chat.imported,
    }
    return (
        _display_title(chat.conversation_id, titles),
        plural(chat.save_points, "{count} save point", "{count} save points"),
        _("{exclusive_bytes} not shared", exclusive_bytes=format_size(chat.exclusive_bytes)),
        _("{size} shared", size=format_size(chat.shared_bytes)),
        _("saved {time} so far", time=format_duration(1000 * saved.get(chat.conversation_id, 0.0))),
        _("last used {timestamp}", timestamp=format_timestamp(chat.last_used_at)),
        join_list(state for state, applies in states.items() if applies),
    )


def _shared_savings(usage: StoreUsage) -> int:
    return max(0, usage.logical_bytes - usage.physical_bytes)


def format_plan(plan: PrunePlan, titles: Titles, target_bytes: int, *, dry_run: bool) -> list[str]:
    left = format_size(plan.bytes_left)
    if not plan.save_point_ids:
        lines = [_("Nothing to delete: the save points use {bytes_left}.", bytes_left=left)]
    else:
        lines = [
            _(
                "Save points to delete: {count} ({size}); time to reprocess: {time}.",
                count=format_number(len(plan.save_point_ids)),
                size=format_size(plan.bytes_freed),
                time=_format_reprocessing(plan.reprocessing),
            )
        ]
        rows = []
        for chat in plan.conversations:
            cost = ""
            if not chat.save_points_left:
                cost = _("time to reprocess: {time}", time=_format_reprocessing(chat.reprocessing))
            count = plural(chat.save_points, "{count} save point", "{count} save points")
            title, freed = _display_title(chat.conversation_id, titles), format_size(chat.bytes_freed)
            rows.append((title, count, freed, cost, _format_left(chat.save_points_left)))
        lines += format_columns(rows)
        lines.append(_("{size} would remain.", size=left) if dry_run else _("{size} remain.", size=left))
    if plan.bytes_left > target_bytes:
        sentence = N_("This is more than {target_bytes} because the index and always-kept save points are not deleted.")
        lines.append(_(sentence, target_bytes=format_size(target_bytes)))
    return lines


def format_verify_report(report: VerifyReport, lost_points: Mapping[str, int], titles: Titles) -> list[str]:
    blocks = plural(report.blocks, "{count} block", "{count} blocks")
    checked = _("{blocks} checked ({bytes})", blocks=blocks, bytes=format_size(report.bytes))
    result = _("{count} damaged and deleted.", count=format_number(report.bad_blocks))
    if report.is_clean:
        result = _("no damage found.")
    rows = [
        (
            _display_title(loss.conversation_id, titles),
            _("{save_points} lost", save_points=plural(loss.save_points, "{count} save point", "{count} save points")),
            _format_left(lost_points.get(loss.conversation_id, 0)),
            loss.reason.text,
        )
        for loss in report.losses
    ]
    return [checked + punctuation(": ") + result, *format_columns(rows)]


def _json_fields(value: Any, titles: Titles, names: str) -> dict[str, Any]:
    """Return these attributes of an object that belongs to a conversation, with the conversation's id and title."""
    fields = {"conversation_id": value.conversation_id, "title": titles.get(value.conversation_id)}
    return fields | pick_fields(value, names)


def _display_title(conversation_id: str, titles: Titles) -> str:
    program = program_of(conversation_id)
    title = _("App: {program}", program=program) if program else titles.get(conversation_id, conversation_id)
    title = one_line(safe_prose(title))
    return title if len(title) <= MAX_TITLE_LENGTH else title[: MAX_TITLE_LENGTH - 1] + "…"


def _format_left(save_points: int) -> str:
    return _("{count} left", count=format_number(save_points)) if save_points else _("none left")


def _format_reprocessing(time: TimeRange | None) -> str:
    return format_estimate(time) if time else _("unknown")
