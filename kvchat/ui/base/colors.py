"""The theme's tokens: plain colour values. The tests hold the contrast that they must keep."""

from __future__ import annotations

from dataclasses import dataclass, replace


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
    code_comment="#5f655f",
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
    selection="#1b423b",
    line="#303533",
    text="#e8eae6",
    muted="#a0a7a2",
    accent="#56c9b0",
    on_accent="#07231d",
    warn="#e8b45a",
    warn_soft="#382d18",
    mark="#483810",
    bad="#f2897f",
    bad_soft="#3c2321",
    code="#131514",
    code_keyword="#e39ac6",
    code_string="#9fd08a",
    code_number="#f0b072",
    code_comment="#a0a7a2",
    code_name="#8dbcf5",
)

# For who has asked the desktop for more contrast.
LIGHT_STRONG = replace(
    LIGHT,
    name="light, strong",
    page="#ffffff",
    sidebar="#ffffff",
    bubble="#f2f2ee",
    hover="#e9e9e4",
    selected="#d8e2d8",
    selection="#c8ebe2",
    line="#5a5f5a",
    text="#000000",
    muted="#383d38",
    accent="#004a3f",
    warn="#5c3600",
    warn_soft="#fff4de",
    mark="#ffe99a",
    bad="#8a0f0a",
    bad_soft="#ffeeec",
    code="#ffffff",
    code_keyword="#6b1050",
    code_string="#1c4a17",
    code_number="#6e3000",
    code_comment="#383d38",
    code_name="#0d3b78",
)

DARK_STRONG = replace(
    DARK,
    name="dark, strong",
    page="#000000",
    sidebar="#000000",
    raised="#0b0d0c",
    bubble="#161918",
    hover="#1c211f",
    selected="#243029",
    selection="#123a33",
    line="#a5aca7",
    text="#ffffff",
    muted="#d3d8d4",
    accent="#7fe8d0",
    on_accent="#000000",
    warn="#ffd080",
    warn_soft="#2b2008",
    mark="#443300",
    bad="#ffb3ab",
    bad_soft="#33110f",
    code="#000000",
    code_keyword="#ffc0e6",
    code_string="#c2efae",
    code_number="#ffcf9e",
    code_comment="#d3d8d4",
    code_name="#b9d8ff",
)
