"""A streamed reply ends up like one parsed at once, and only the blocks at its end are parsed again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.ui.rendering.markdown import Block, Code, Prose, WideBlock
from kvchat.ui.rendering.markdown_stream import MarkdownStream
from tests.ui.reading import MARKDOWN, blocks

PIECES = (
    *("a", "b *c*", "\n", "\n\n", "- ", "* ", "+", "1. ", "2) ", "  ", "    ", "\t", "> ", "# ", "#", "=", "---", "`"),
    *("```", "```py\n", "~~~", "|a|b|", "|-|-|", "$$", "$x$", "\\[", "\\]", "\\begin{align}", "\\end{align}", "<b>"),
    *("[r]", "[r]: http://x.y", "[^1]", "[^1]: n", "- [ ] "),
)


def look_of(read: list[Block]) -> list[tuple[object, ...]]:
    """Return the visible properties of blocks."""
    return [
        ("code", block.language, block.text, block.indent)
        if isinstance(block, Code)
        else (type(block), block.html, block.formulas, getattr(block, "list_tag", ""))
        for block in read
    ]


def grown(text: str, step: int) -> MarkdownStream:
    stream = MarkdownStream(MARKDOWN)
    for i in range(0, len(text), step):
        stream.feed(text[i : i + step])
        while stream.step():
            pass
    return stream


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), st.integers(1, 7))
def test_grown_and_read_at_once_look_the_same(text: str, step: int) -> None:
    stream = grown(text, step)
    stream.finished = True
    stream.step()
    assert not stream.open_blocks
    assert look_of(stream.settled_blocks) == look_of(blocks(text))


@pytest.mark.parametrize(
    ("text", "longest"),
    [
        ("\n\n".join(f"Paragraph {i} with words. " * 5 for i in range(200)), 400),
        ("\n".join(f"{i}. Item {i}" for i in range(500)), 100),
        ("x" * 40_000, 4_100),
        ("| a | b |\n|---|---|\n" + "".join(f"| row {i} | words |\n" for i in range(250)), 2_000),
    ],
    ids=["paragraphs", "list", "one word", "table"],
)
def test_only_the_last_block_is_read_again(text: str, longest: int) -> None:
    """Each step parses a bounded amount of text, or a long reply would block the window."""
    stream = grown(text, 20)
    unsettled = len(text) - sum(len(block.source) for block in stream.settled_blocks)
    assert sum(len(block.source) for block in stream.open_blocks) < longest
    assert unsettled < longest + len(stream.settled_blocks) * 2


@pytest.mark.parametrize("behind", ["", "\n# The end\n", "\n\n|x|y|\n|-|-|\n|1|2|\n"])
@pytest.mark.parametrize("rows", [60, 121, 250])
def test_a_long_table_grows_in_pieces_under_the_same_head_and_is_joined_unless_it_is_huge(
    rows: int, behind: str
) -> None:
    text = "| a | b |\n|---|---|\n" + "\n".join(f"| r{i} | word |" for i in range(rows))
    assert rows_of(grown(text[:900], 37)) == [text[:900].count("word")], "one block while it grows"
    stream = grown(text, 37)
    assert rows_of(stream)[0] <= 61
    stream.feed(behind)
    stream.finished = True
    while stream.step():
        pass
    assert look_of(stream.settled_blocks) == look_of(blocks(text + behind))
    assert rows_of(stream) == ([60, 60, 60, 60, 10] if rows == 250 else [rows])


def rows_of(stream: MarkdownStream) -> list[int]:
    tables = [
        block
        for block in (*stream.settled_blocks, *stream.open_blocks)
        if isinstance(block, WideBlock) and "| a |" in block.source
    ]
    assert all(block.source.startswith("| a | b |\n|---|---|\n| r") for block in tables)
    return [block.html.count("word") for block in tables]


def test_a_definition_that_comes_late_is_used() -> None:
    stream = grown("See [here][r] and this[^n].\n\nMore.\n\nAnd more.\n\n", 1)
    first, second = stream.settled_blocks
    assert isinstance(first, Prose)
    assert "href" not in first.html
    for piece in ("[r]: https://exam", "ple.org\n[^n]: A note.\n\nThe end.\n\n."):
        stream.feed(piece)
        stream.step()
    again = stream.settled_blocks[0]
    assert isinstance(again, Prose)
    assert 'href="https://example.org"' in again.html, "and not a part of it"
    assert "<sup" in again.html
    assert stream.settled_blocks[1] is second, "nothing else is made again"


def test_code_grows_line_by_line() -> None:
    stream = grown("```python\nx = 1\ny = ", 1)
    (code,) = stream.open_blocks
    assert code == Code("python", "x = 1\ny =", code.source)
    stream.feed("2\n``")
    stream.step()
    (code,) = stream.open_blocks
    assert isinstance(code, Code)
    assert code.text == "x = 1\ny = 2"  # two backticks may become the closing fence: they must not flash up as code
    stream.feed("`\nafter\n\n.\n")
    stream.step()
    assert [type(block) for block in stream.settled_blocks] == [Code, Prose]
