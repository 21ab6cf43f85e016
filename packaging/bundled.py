"""Collect the licenses of everything in the bundle. The records of pip and dpkg tell which package owns a file."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXTS = {"LGPL-3.0": ("LGPL-3.0", "GPL-3.0"), "MIT": ("MIT",)}  # licenses that packages name without their text
FILES = ("licen", "copying", "notice", "authors")


class NoLicence(Exception):
    """A bundled file has no license or no known owner."""


def licences(files: Iterable[str | Path], version: str) -> str:
    """Return LICENCES.txt for a bundle of these files. Raises NoLicence, which lists everything missing."""
    texts: dict[str, str] = {}
    missing: list[str] = []
    for name, owner in _owners({Path(file).absolute() for file in files}).items():
        try:
            texts[name] = _read(owner) if isinstance(owner, Path) else _text_of(owner)
        except (NoLicence, OSError) as error:
            missing.append(f"{name}: {error}")
    if missing:
        raise NoLicence("\n".join(["no license for these parts of the bundle:", *sorted(missing)]))
    names = sorted(texts, key=str.lower)
    listed = "".join(f"  {name}\n" for name in names)
    line = "=" * 100
    whole = "".join(f"\n{line}\n{name}\n{line}\n\n{texts[name].strip()}\n" for name in names)
    return f"kvchat {version}\n\n{_read(ROOT / 'LICENSE')}\nIt includes, each under its own license:\n\n{listed}{whole}"


def _owners(files: set[Path]) -> dict[str, Distribution | Path]:
    """Return the owners of the files by name: pip distributions, or license files of other owners."""
    installed = {
        Path(str(dist.locate_file(file))).resolve(): dist for dist in distributions() for file in dist.files or ()
    }
    used = {dist for dist in distributions() if dist.metadata["Name"].lower() == "pyinstaller"}  # for its boot loader
    rest = []
    for file in files:
        if (owner := installed.get(file.resolve())) is not None:
            used.add(owner)
        elif not file.is_relative_to(ROOT) or ".venv" in file.parts:
            rest.append(file)
    found: dict[str, Distribution | Path] = {
        f"{dist.metadata['Name']} {dist.version}": dist for dist in used if dist.metadata["Name"] != "kvchat"
    }
    packages = _debian_packages(rest)
    for file in rest:
        if (package := packages.get(file)) is not None:
            found[f"{package} (Debian)"] = Path("/usr/share/doc") / package / "copyright"
        elif file.resolve().is_relative_to(Path(sys.base_prefix).resolve()):
            found[f"Python {sys.version.split()[0]}"] = _python_licence()
        else:
            found[str(file)] = file.parent / "unknown owner"
    return found


def _debian_packages(files: list[Path]) -> dict[Path, str]:
    """Return the owning Debian package by file, for files that have one."""
    if not files or shutil.which("dpkg-query") is None:
        return {}
    places: dict[str, Path] = {}
    for file in files:
        for place in {str(file), str(file.resolve())}:
            places |= {place: file, place.removeprefix("/usr"): file, f"/usr{place}": file}
    output = subprocess.run(["dpkg-query", "-S", *places], capture_output=True, text=True, check=False).stdout
    lines = (line.rpartition(": ") for line in output.splitlines())
    return {places[place]: re.split("[:,]", owner)[0] for owner, _, place in lines if place in places}


def _python_licence() -> Path:
    folders = (Path(shutil.__file__).parent, Path(sys.base_prefix))
    found = (folder / name for folder in folders for name in ("LICENSE.txt", "LICENSE") if (folder / name).exists())
    return next(found, Path("/usr/share/doc") / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "copyright")


def _text_of(distribution: Distribution) -> str:
    """Return the license texts in the metadata, or the text of the license that the metadata names."""
    parts = [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
    inside = [part for part in parts if ".dist-info" in str(part) and part.name.lower().startswith(FILES)]
    if inside:
        more = (
            ROOT / "packaging" / "licences" / f"{distribution.metadata['Name']}.txt"
        )  # texts that the distribution lacks
        return "\n\n".join(_read(file).strip() for file in [*sorted(inside), *([more] if more.exists() else [])])
    named = " ".join(
        value for key, value in distribution.metadata.items() if key in ("License-Expression", "License", "Classifier")
    )
    for name, texts in TEXTS.items():
        if name in named:
            author = distribution.metadata.get("Author") or distribution.metadata.get("Author-email") or "its authors"
            return "\n\n".join(
                [f"By {author}: {name}", *(_read(ROOT / "packaging/licences" / f"{text}.txt") for text in texts)]
            )
    raise NoLicence(f"no license text in its metadata, and none known for {named!r}")


def _read(path: Path) -> str:
    return path.read_text("utf-8", "replace")
