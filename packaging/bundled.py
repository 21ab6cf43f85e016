"""The licences of all that is in the bundle, in one text. Whose each file is, pip's records and dpkg's tell."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXTS = {"LGPL-3.0": ("LGPL-3.0", "GPL-3.0"), "MIT": ("MIT",)}  # of those that name theirs and come without its text
FILES = ("licen", "copying", "notice", "authors")


class NoLicence(Exception):
    """Something in the bundle has none, or nobody knows whose it is."""


def licences(files: Iterable[str | Path], version: str) -> str:
    """The text for a bundle made of these files. Raises NoLicence, which names all that is missing."""
    texts: dict[str, str] = {}
    missing: list[str] = []
    for name, owner in _owners({Path(file).absolute() for file in files}).items():
        try:
            texts[name] = _read(owner) if isinstance(owner, Path) else _text_of(owner)
        except (NoLicence, OSError) as error:
            missing.append(f"{name}: {error}")
    if missing:
        raise NoLicence("\n".join(["no licence for what is bundled:", *sorted(missing)]))
    names = sorted(texts, key=str.lower)
    listed = "".join(f"  {name}\n" for name in names)
    line = "=" * 100
    whole = "".join(f"\n{line}\n{name}\n{line}\n\n{texts[name].strip()}\n" for name in names)
    return (
        f"kvchat {version}\n\n{_read(ROOT / 'LICENSE')}\nWith it come, each under its own licence:\n\n{listed}{whole}"
    )


def _owners(files: set[Path]) -> dict[str, Distribution | Path]:
    """By name: what pip knows, or else the file with the licence."""
    installed = {Path(str(one.locate_file(file))).resolve(): one for one in distributions() for file in one.files or ()}
    used = {one for one in distributions() if one.metadata["Name"].lower() == "pyinstaller"}  # its boot loader
    rest = []
    for file in files:
        if (owner := installed.get(file.resolve())) is not None:
            used.add(owner)
        elif not file.is_relative_to(ROOT) or ".venv" in file.parts:
            rest.append(file)
    found: dict[str, Distribution | Path] = {
        f"{one.metadata['Name']} {one.version}": one for one in used if one.metadata["Name"] != "kvchat"
    }
    packages = _debian_packages(rest)
    for file in rest:
        if (package := packages.get(file)) is not None:
            found[f"{package} (Debian)"] = Path("/usr/share/doc") / package / "copyright"
        elif file.resolve().is_relative_to(Path(sys.base_prefix).resolve()):
            found[f"Python {sys.version.split()[0]}"] = _python_licence()
        else:
            found[str(file)] = file.parent / "whoever made it"
    return found


def _debian_packages(files: list[Path]) -> dict[Path, str]:
    """The packages these files are of; those of no package are left out."""
    if not files or shutil.which("dpkg-query") is None:
        return {}
    places: dict[str, Path] = {}
    for file in files:
        for place in {str(file), str(file.resolve())}:
            places |= {place: file, place.removeprefix("/usr"): file, f"/usr{place}": file}
    said = subprocess.run(["dpkg-query", "-S", *places], capture_output=True, text=True, check=False).stdout
    lines = (line.rpartition(": ") for line in said.splitlines())
    return {places[place]: re.split("[:,]", owner)[0] for owner, _, place in lines if place in places}


def _python_licence() -> Path:
    folders = (Path(shutil.__file__).parent, Path(sys.base_prefix))
    found = (folder / name for folder in folders for name in ("LICENSE.txt", "LICENSE") if (folder / name).exists())
    return next(found, Path("/usr/share/doc") / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "copyright")


def _text_of(distribution: Distribution) -> str:
    """The texts in its metadata, or the one that its licence's name stands for."""
    parts = [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
    inside = [one for one in parts if ".dist-info" in str(one) and one.name.lower().startswith(FILES)]
    if inside:
        more = ROOT / "packaging" / "licences" / f"{distribution.metadata['Name']}.txt"  # what its own leave out
        return "\n\n".join(_read(one).strip() for one in [*sorted(inside), *([more] if more.exists() else [])])
    named = " ".join(
        value for key, value in distribution.metadata.items() if key in ("License-Expression", "License", "Classifier")
    )
    for name, texts in TEXTS.items():
        if name in named:
            author = distribution.metadata.get("Author") or distribution.metadata.get("Author-email") or "its authors"
            return "\n\n".join(
                [f"By {author}: {name}", *(_read(ROOT / "packaging/licences" / f"{one}.txt") for one in texts)]
            )
    raise NoLicence(f"no text in its metadata, and none known for {named!r}")


def _read(path: Path) -> str:
    return path.read_text("utf-8", "replace")
