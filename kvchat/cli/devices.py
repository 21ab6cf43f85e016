"""`kvchat pair` and `kvchat devices`: sharing this computer's models, and using those of another computer."""

import asyncio
import io
from typing import Any

import segno

from kvchat.cli import arguments
from kvchat.cli.owned import CommandRunner
from kvchat.cli.store import delete_program_memory
from kvchat.cli.terminal import format_columns, print_err, print_out, print_result, stdout_is_tty
from kvchat.engine_host.paired_computer import PairedComputerStore
from kvchat.errors import KvchatError
from kvchat.sharing_service import NotShared, SharingService, find_shared
from kvchat.text.formatting import format_day
from kvchat.text.language import _
from kvchat.text.safe_text import safe_prose


async def pair_computers(options: arguments.PairOptions, runner: CommandRunner) -> int:
    """Show a code for a new device or, given an address, use the models of that computer. Raises KvchatError."""
    if options.find:
        found = await find_shared()
        lines = (
            format_columns([*map(tuple, found.items())])
            if found
            else [_("No computer that shares its models was found.")]
        )
        return print_result(options.as_json, found, lines)
    if options.address is None:
        return await _show_code(options, runner)
    if not options.code:
        advice = _("Run `kvchat pair` on the other computer, or see Settings, Devices there.")
        raise KvchatError(_("The code is missing"), _("The other computer shows the code."), advice)
    store = PairedComputerStore(runner.paths)
    before, computer = await asyncio.to_thread(store.load), await store.pair(options.address, options.code)
    await runner.change_settings(engine_url=computer.url)
    if runner.open_runtime is not None:
        await runner.open_runtime.restart_engine()
    name = safe_prose(computer.name)
    facts = {"name": computer.name, "url": computer.url, "device": computer.device}
    lines = [_("Paired with {name}. Chats now use its models.", name=name)]
    if before is not None and before.certificate != computer.certificate:
        lines.append(
            _(
                "The memory of your chats stays on {name} until you remove this computer there, in Settings, Devices.",
                name=safe_prose(before.name),
            )
        )
    return print_result(options.as_json, facts, lines)


async def _show_code(options: arguments.PairOptions, runner: CommandRunner) -> int:
    sharing = await _sharing(runner)
    known = {(device.id, device.paired_at) for device in sharing.devices}
    code, changed = sharing.show_code(), asyncio.Event()
    unsubscribe = sharing.subscribe(changed.set)
    try:
        if options.as_json:
            print_result(True, {"code": code, "addresses": sharing.addresses, "link": sharing.link}, [])
        else:
            print_out(_("Code: {code}", code=code))
            for address in sharing.addresses:
                print_out(address)
            if sharing.link and stdout_is_tty():
                print_out(_qr_code(sharing.link))
                print_out(
                    _("Scan the QR code with a phone or tablet, or open this link on it: {link}", link=sharing.link)
                )
            print_err(_("Enter the code on the other computer within ten minutes. Waiting…"))
        while not (new := [device for device in sharing.devices if (device.id, device.paired_at) not in known]):
            await changed.wait()
            changed.clear()
    finally:
        unsubscribe()
        sharing.hide_code()
    if not options.as_json:
        print_out(_("Paired with {name}.", name=safe_prose(new[0].name)))
    return 0


def _qr_code(text: str) -> str:
    drawn = io.StringIO()
    segno.make(text, micro=False).terminal(drawn, border=2, compact=True)
    return drawn.getvalue()


async def list_devices(options: arguments.JsonOptions, runner: CommandRunner) -> int:
    sharing = await _sharing(runner, must_be_open=False)
    facts: list[dict[str, Any]] = [
        {
            "id": device.id,
            "name": device.name,
            "browser": device.is_browser,
            "paired_at": device.paired_at,
            "last_used_at": device.last_used_at or None,
        }
        for device in sharing.devices
    ]
    rows = [
        (
            device.id,
            safe_prose(device.name),
            format_day(device.last_used_at) if device.last_used_at else _("never used"),
        )
        for device in sharing.devices
    ]
    return print_result(options.as_json, facts, format_columns(rows) if rows else [_("No device is paired.")])


async def remove_device(options: arguments.DeviceOptions, runner: CommandRunner) -> int:
    sharing = await _sharing(runner, must_be_open=False)
    named = [device for device in sharing.devices if options.name in (device.id, device.name)]
    device = named[0] if len(named) == 1 else None  # devices choose their names: two may have the same
    if device is None:
        advice = _("List the devices with `kvchat devices`.")
        raise KvchatError(_("There is no such device"), safe_prose(options.name), advice)
    if runner.open_runtime is not None:
        await runner.open_runtime.api_server.remove_device(device.id)
    else:
        sharing.remove(device.id)
        await delete_program_memory(device.program, runner)
    await sharing.wait_until_saved()
    line = _("“{name}” was removed and can no longer use the models of this computer.", name=safe_prose(device.name))
    return print_result(options.as_json, {"id": device.id}, [line])


async def _sharing(runner: CommandRunner, *, must_be_open: bool = True) -> SharingService:
    if runner.open_runtime is not None:
        sharing = runner.open_runtime.api_server.sharing
    else:
        sharing = SharingService(
            runner.paths, lambda: runner.settings, lambda title, detail: print_err(f"{title}: {detail}")
        )
    if must_be_open and sharing.port is None:
        raise NotShared
    await sharing.load()
    return sharing
