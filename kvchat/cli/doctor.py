"""`kvchat doctor`: diagnostics of this computer, for the user and for bug reports."""

import asyncio
import ctypes
import dataclasses
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvchat import __version__
from kvchat.cli.arguments import DoctorOptions
from kvchat.cli.engines import DEVICE_KEYS
from kvchat.cli.terminal import pick_fields, print_result
from kvchat.engine.discovery.arguments import parse_workers
from kvchat.engine.discovery.engines import find_engine, list_devices, usable_engine
from kvchat.engine.process.plan import FULL_WINDOW_OPTION
from kvchat.engine_host.choice import memory_for
from kvchat.errors import KvchatError
from kvchat.kvstore.memory_files import MEMORY_FOLDER, StagingMemory, describe_staging, staging_capacity
from kvchat.library.gguf.facts import model_identity, read_facts
from kvchat.library.gguf.kv_cache import kv_bytes_per_token
from kvchat.library.memory.context_size import ContextChoice, ContextChooser
from kvchat.library.memory.demand import LoadLimits, MemoryFacts, ModelDemand, available_memory, limit_key, staging_room
from kvchat.session.restore_support import forget_model, newest_finding
from kvchat.settings import Settings, load_settings
from kvchat.store_service import describe_limit, store_problem
from kvchat.system.display import find_display_problem
from kvchat.system.files import is_folder
from kvchat.system.paths import Paths, resolve_paths
from kvchat.system.session_bus import BusUnavailable, Service, SessionBus
from kvchat.text.formatting import format_size

FOLDERS = ("config", "data", "models", "save points", "state")
EXTERNAL_SERVER = "server"  # kind of an external engine, whose devices are unknown
_LABEL_WIDTH = 14
_BUS_SERVICE = Service("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
_TRAY_WATCHER = "org.kde.StatusNotifierWatcher"  # bus name of StatusNotifierItem trays


Report = dict[str, Any]  # with the keys of `--json`
AVAILABLE, MISSING, UNKNOWN = "available", "missing", "unknown"  # states of a desktop service, such as the tray


def doctor(options: DoctorOptions) -> int:
    """Print the report and return 1 if something is broken.

    `--retest` first deletes the stored results of the model's restore test.
    """
    paths = resolve_paths()
    settings = load_settings(paths.settings_file)
    if options.model is not None:
        settings = dataclasses.replace(settings, model_path=str(options.model))
    if options.retest and settings.model_path:
        forget_model(paths.restore_findings, model_identity(Path(settings.model_path)))
    report = collect_report(paths, settings)
    print_result(options.as_json, _json_fields(report), format_lines(report))
    return 0 if is_healthy(report) else 1


def is_healthy(report: Report) -> bool:
    """Return True if nothing is broken. Not having chosen a model is not a fault."""
    parts = (report["engine"], report["model"], *report["directories"])
    return report["engine"]["found"] and not any(part["problem"] for part in parts)


def collect_report(paths: Paths, settings: Settings) -> Report:
    """Collect the report. Blocks for about a second, while the engine lists its version and devices."""
    engine, memory = _inspect_engine(settings)
    model, context = _inspect_model(settings, memory, LoadLimits(paths.load_limits), engine["build"])
    restoring = None  # the result of the newest engine build, since a broken engine does not report its build
    if model["usable"] and (newest := newest_finding(paths.restore_findings, model_identity(Path(model["path"])))):
        finding, build = newest
        restoring = {"strategy": finding.strategy.value, "words": finding.description, "build": build}
    problem = find_display_problem()
    folders = [(name, getattr(paths, name.replace(" ", "_"))) for name in FOLDERS]
    store = paths.save_points  # before the first start, measure the disk of a parent folder
    disk = next((folder for folder in (store, *store.parents) if is_folder(folder)), Path(store.anchor))
    return {
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "engine": engine,
        "model": model,
        "context": context,
        "restoring": restoring,
        "memory": memory,
        "display": _describe_service(*((MISSING, problem.detail) if problem else (AVAILABLE, "a window can open"))),
        "tray": find_tray(),
        "keyring": find_keyring(),
        "free_disk_bytes": shutil.disk_usage(disk).free,
        "free_floor_bytes": settings.free_floor_bytes,
        "quota": describe_limit(paths, settings),
        "staging": describe_staging(MEMORY_FOLDER, staging_room(0)),
        "directories": [
            {"name": name, "path": str(path), "exists": is_folder(path)}
            | {"problem": store_problem(paths) if name == "save points" else ""}
            for name, path in folders
        ],
    }


def _inspect_engine(settings: Settings) -> tuple[Report, MemoryFacts]:
    report: Report = {"found": True, "kind": "", "path": None, "version": "", "build": "", "devices": (), "problem": ""}
    if settings.engine_url:
        report |= {"kind": EXTERNAL_SERVER, "path": settings.engine_url}
        return report | {"version": "external llama-server set in the settings"}, available_memory()
    try:
        location = find_engine(settings.engine_path)
    except KvchatError as error:
        return report | {"found": False, "problem": str(error)}, available_memory()
    try:
        probe = usable_engine(settings.engine_path)
        location, workers = probe.location, parse_workers(settings.rpc_workers)
        devices = list_devices(location, workers)
        memory = memory_for(location, workers, StagingMemory(capacity=staging_capacity(MEMORY_FOLDER)))
        report |= {"version": probe.version, "build": probe.identity, "devices": devices}
    except KvchatError as error:
        memory = available_memory()
        report["problem"] = str(error)
    return report | {"kind": location.kind, "path": location.path and str(location.path)}, memory


def _inspect_model(
    settings: Settings, memory: MemoryFacts, limits: LoadLimits, build: str
) -> tuple[Report, ContextChoice | None]:
    report: Report = {"path": settings.model_path, "usable": False, "name": "", "architecture": "", "quantisation": ""}
    report |= {"size": 0, "trained_context": 0, "kv_bytes_per_token": 0.0, "problem": ""}
    if settings.model_path is None:
        return report, None
    try:
        facts = read_facts(Path(settings.model_path))
        limit = limits.find(limit_key(model_identity(facts.path), facts.size, build, memory.device_kind))
    except KvchatError as error:
        return report | {"problem": str(error)}, None
    demand = ModelDemand(facts, settings.kv_type, FULL_WINDOW_OPTION in settings.engine_arguments.split(), limit=limit)
    names = ("name", "architecture", "quantisation", "size", "trained_context")
    report |= {"path": str(facts.path), "usable": True} | {name: getattr(facts, name) for name in names}
    report["kv_bytes_per_token"] = kv_bytes_per_token(facts.kv, settings.kv_type, settings.kv_type)
    return report, ContextChooser(demand, memory).choose(settings.context_size)


def _describe_service(presence: str, detail: str) -> Report:
    return {"presence": presence, "detail": detail}


def find_tray(environment: Mapping[str, str] = os.environ) -> Report:
    if sys.platform != "linux":
        return _describe_service(AVAILABLE, "provided by the system")
    report = _describe_service(MISSING, "no session bus")
    if address := environment.get("DBUS_SESSION_BUS_ADDRESS"):
        report = asyncio.run(_find_bus_tray(address))
    if report["presence"] == AVAILABLE or not (display := environment.get("DISPLAY")):
        return report
    x11 = _find_x11_tray(display)
    return x11 if x11["presence"] != UNKNOWN else report


async def _find_bus_tray(address: str) -> Report:
    bus = SessionBus(address)
    try:
        (has_owner,) = await bus.call(_BUS_SERVICE, "NameHasOwner", "s", _TRAY_WATCHER)
    except BusUnavailable as error:
        return _describe_service(UNKNOWN, f"the session bus does not respond: {error}")
    finally:
        await bus.close()
    if has_owner:
        return _describe_service(AVAILABLE, "a StatusNotifier host is on the session bus")
    return _describe_service(MISSING, "no StatusNotifier host is on the session bus")


def _find_x11_tray(display: str) -> Report:
    """Look up the owner of the first screen's tray selection (freedesktop.org system tray protocol)."""
    try:
        x11 = ctypes.CDLL("libX11.so.6")
    except OSError:
        return _describe_service(UNKNOWN, "libX11 is not installed")
    x11.XOpenDisplay.restype = ctypes.c_void_p
    x11.XInternAtom.restype = x11.XGetSelectionOwner.restype = ctypes.c_ulong
    x11.XGetSelectionOwner.argtypes = [ctypes.c_void_p, ctypes.c_ulong]
    x11.XInternAtom.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    x11.XCloseDisplay.argtypes = [ctypes.c_void_p]
    connection = x11.XOpenDisplay(display.encode())
    if not connection:
        return _describe_service(UNKNOWN, f"cannot connect to the X display {display}")
    try:
        owner = x11.XGetSelectionOwner(connection, x11.XInternAtom(connection, b"_NET_SYSTEM_TRAY_S0", 0))
    finally:
        x11.XCloseDisplay(connection)
    if owner:
        return _describe_service(AVAILABLE, f"the X display {display} has a system tray")
    return _describe_service(MISSING, f"neither the session bus nor the X display {display} has a tray")


def find_keyring() -> Report:
    try:
        import keyring
        from keyring.backends import fail, null

        backend = keyring.get_keyring()
    except Exception as error:  # third-party backends may raise anything
        return _describe_service(UNKNOWN, f"the keyring failed: {error or type(error).__name__}")
    if isinstance(backend, fail.Keyring | null.Keyring):
        return _describe_service(MISSING, "no keyring service is running")
    return _describe_service(AVAILABLE, backend.name)


def _json_fields(report: Report) -> Report:
    context, memory, devices = report["context"], report["memory"], report["engine"]["devices"]
    if context is not None:
        bar_names = "device free margin weights kv compute other measured staging"
        bars = [pick_fields(bar, bar_names) for bar in context.memory_uses]
        names = "tokens reason memory_note kv_bytes needed free fits offload_note fit_target without_gpu warning"
        context = pick_fields(context, f"{names} by_user") | {"bars": bars}
    return report | {
        "engine": report["engine"] | {"devices": [pick_fields(device, DEVICE_KEYS) for device in devices]},
        "context": context,
        "memory": pick_fields(memory, "available is_limited total staging_capacity")
        | {"devices": [pick_fields(device, "name free") for device in memory.devices]},
    }


def format_lines(report: Report) -> list[str]:
    engine, model, context = report["engine"], report["model"], report["context"]
    rows = [("kvchat", f"{report['version']}, Python {report['python']}, {report['system']}")]
    if engine["found"]:
        rows += [("engine", engine["path"] or "embedded"), ("", engine["problem"] or engine["version"])]
    else:
        rows.append(("engine", f"not found. {engine['problem']}"))
    for device in engine["devices"]:
        # For "CPU", the engine reports all memory as free. The row "memory" has the correct number.
        free = f", {format_size(device.free_bytes)} free" if device.free_bytes and device.name != "CPU" else ""
        rows.append(("device", f"{device.name}: {device.description}{free}"))
    if engine["found"] and not (engine["devices"] or engine["problem"] or engine["kind"] == EXTERNAL_SERVER):
        rows.append(("device", "CPU only"))

    if model["path"] is None:
        rows.append(("model", "none chosen"))
    elif not model["usable"]:
        rows.append(("model", model["problem"]))
    else:
        facts = f"{model['name']}: {model['architecture']}, {model['quantisation']}, {format_size(model['size'])}"
        rows += [("model", facts), ("", model["path"])]
    if context is not None:
        rows.append(("context", context.full_explanation))
        if context.warning:
            rows.append(("", context.warning))
        rows += [("takes", f"{bar.name}: {bar.summary}") for bar in context.memory_uses]
    if report["restoring"] is not None:
        rows += [("restoring", report["restoring"]["words"]), ("", f"engine: {report['restoring']['build']}")]
    elif model["usable"]:
        rows.append(("restoring", "not tested yet; kvchat tests it when it first starts an engine with this model"))

    memory: MemoryFacts = report["memory"]
    disk, floor = format_size(report["free_disk_bytes"]), format_size(report["free_floor_bytes"])
    rows += [
        ("memory", f"{format_size(memory.available)} {'available to this process' if memory.is_limited else 'free'}"),
        *((name, "{presence}: {detail}".format(**report[name])) for name in ("display", "tray", "keyring")),
        ("free disk", f"{disk}; chat memory is not saved below {floor}"),
        ("limit", report["quota"]),
        ("staging", report["staging"]),
    ]
    for folder in report["directories"]:
        is_created = folder["exists"] or folder["problem"]
        rows.append((folder["name"], folder["path"] + ("" if is_created else " (not created yet)")))
        if folder["problem"]:
            rows.append(("", folder["problem"]))
    return [f"{label:<{_LABEL_WIDTH}}{text}" for label, text in rows]
