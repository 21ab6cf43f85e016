"""The theme's tokens: plain colour values. The tests hold the contrast that they must keep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    """One set of colours, each "#rrggbb". There is one accent; it also means "proved": the memory worked."""

    name: str
    page: str  # the transcript's ground
    sidebar: str  # sidebar and strip
    raised: str  # composer, cards, menus
    bubble: str  # the user's messages
    hover: str
    selected: str
    selection: str  # behind selected text, which keeps its colour, as pictures of formulas must
    line: str  # hairlines
    text: str
    muted: str  # receipts, captions
    accent: str
    on_accent: str
    warn: str
    warn_soft: str
    mark: str  # the ground of what was searched for
    bad: str
    bad_soft: str
    code: str  # the ground of code
    code_keyword: str
    code_string: str
    code_number: str
    code_comment: str
    code_name: str


LIGHT = Theme(
    name="light",
    page="#fdfdfb",
    sidebar="#f5f5f1",
    raised="#ffffff",
    bubble="#eeefe9",
    hover="#ebebe5",
    selected="#e2e6de",
    selection="#c6e8e0",
    line="#e3e3dc",
    text="#1d211e",
    muted="#5f655f",
    accent="#0c6e60",
    on_accent="#ffffff",
    warn="#8a5300",
    warn_soft="#fbf0da",
    mark="#fbe08c",
    bad="#b3261e",
    bad_soft="#fbe9e7",
    code="#f4f4ef",
    code_keyword="#8a2f6b",
    code_string="#2f6b2a",
    code_number="#a04a00",
    code_comment="#666c64",
    code_name="#1f5aa6",
)

DARK = Theme(
    name="dark",
    page="#1a1c1b",
    sidebar="#141615",
    raised="#222524",
    bubble="#2a2e2c",
    hover="#2c312f",
    selected="#353d39",
    selection="#1f5349",
    line="#303533",
    text="#e8eae6",
    muted="#a0a7a2",
    accent="#56c9b0",
    on_accent="#07231d",
    warn="#e8b45a",
    warn_soft="#382d18",
    mark="#665016",
    bad="#f2897f",
    bad_soft="#3c2321",
    code="#131514",
    code_keyword="#e39ac6",
    code_string="#9fd08a",
    code_number="#f0b072",
    code_comment="#8d948f",
    code_name="#8dbcf5",
)
