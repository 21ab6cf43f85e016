"""Descriptions of other programs' requests, and the list of a program's last requests."""

from collections.abc import Sequence
from datetime import UTC, datetime

from PySide6.QtWidgets import QWidget

from kvchat.chat.record.messages import Receipt
from kvchat.chat.turn.receipts import receipt_source_label
from kvchat.gateway.diagnosis.rules import RULES
from kvchat.gateway.records import ProgramTotal, RequestRecord, Stage, TokenCost
from kvchat.session.proof import Source
from kvchat.text.formatting import (
    format_age,
    format_brief_duration,
    format_datetime,
    format_estimate,
    format_percent,
    format_tokens,
)
from kvchat.text.language import N_, _, capitalize_first, end_sentence, format_number, join_list, join_parts, plural
from kvchat.text.search import common_prefix_length
from kvchat.ui.base.building import clear, column, label, plain_text, row
from kvchat.ui.base.theme import Look, code_font
from kvchat.ui.transcript.footer import ReceiptView
from kvchat.ui.widgets.lists import Row, RowList, Tone
from kvchat.ui.widgets.text_search import highlight, make_cursors

_STAGES = {
    Stage.QUEUED: N_("waiting"),
    Stage.LOADING: N_("loading memory"),
    Stage.READING: N_("processing"),
    Stage.ANSWERING: N_("generating"),
}
_END_STAGES = {Stage.FAILED: N_("failed"), Stage.LEFT: N_("canceled by the app")}
_MIN_SAVED_MS = 1000.0  # less is not shown
_GOOD_SHARE = 0.7  # minimum share of reused tokens for a highlighted chip
_MAX_REQUESTS = 50  # shown per program
_VISIBLE_ROWS, _VISIBLE_LINES = 5, 5  # list rows and text lines that are visible without scrolling
_CONTEXT_CHARACTERS = 60  # maximum characters before the divergence


def describe_stage(record: RequestRecord) -> str:
    if record.stage is Stage.READING and record.prompt_tokens:
        left = record.prompt_tokens - (record.found_tokens or 0)
        return _(
            "processing, {read} of {left} tokens", read=format_number(record.processed_tokens), left=format_number(left)
        )
    return _(_STAGES.get(record.stage, _END_STAGES.get(record.stage, "")))


def program_row(program: str, title: str, total: ProgramTotal) -> Row:
    parts = [plural(total.requests, "{count} request", "{count} requests")]
    if total.last_at:
        parts.append(_("last {when}", when=format_age(datetime.fromtimestamp(total.last_at, UTC), datetime.now(UTC))))
    if total.saved_ms >= _MIN_SAVED_MS:
        parts.append(_("{time} saved", time=format_estimate(total.saved_ms / 1000)))
    chip = _("{share} remembered", share=format_percent(total.cached_share)) if total.prompt else ""
    return Row(program, title, join_parts(parts), chip, Tone.GOOD if total.cached_share >= _GOOD_SHARE else Tone.PLAIN)


def describe_totals(totals: Sequence[ProgramTotal]) -> str:
    prompt, cached = sum(total.prompt for total in totals), sum(total.cached for total in totals)
    programs, requests = plural(len(totals), "{count} app", "{count} apps"), sum(total.requests for total in totals)
    text = plural(requests, "{count} request from {programs}", "{count} requests from {programs}", programs=programs)
    if not prompt:
        return end_sentence(text)
    share = format_percent(cached / prompt)
    return _("{words}; {share} of their tokens did not have to be reprocessed.", words=text, share=share)


def format_cost(cost: TokenCost) -> str:
    time = format_estimate(cost.ms / 1000) if cost.ms >= _MIN_SAVED_MS else ""
    return join_list((f"{format_number(cost.times)}×", time))


def describe_request(record: RequestRecord) -> str:
    if record.stage in _END_STAGES:
        status = f" ({record.status})" if record.status >= 400 else ""
        return f"{_(_END_STAGES[record.stage])}{status}"
    parts = [
        _("{tokens} tokens", tokens=format_tokens(record.prompt_tokens)) if record.prompt_tokens else _("no prompt")
    ]
    if record.first_ms is not None:
        time = format_brief_duration(_first_token_ms(record))
        # Some dialects omit the writing time of unstreamed replies.
        knows_first = record.stream or record.generation_ms
        first = _("first token after {first_ms}", first_ms=time)
        parts.append(first if knows_first else _("completed after {time}", time=time))
    if record.miss_reason:
        parts.append(record.miss_reason.text)
    return join_parts(parts)


def receipt_of(record: RequestRecord) -> Receipt | None:
    """Return a receipt as for a reply in a chat, or None if the request did not end with a response to a prompt."""
    if record.stage is not Stage.DONE or record.prompt_tokens is None or record.cached_tokens is None:
        return None
    first = _first_token_ms(record)
    waited, writing = first - record.queue_ms, ((record.total_ms or 0.0) - first) / 1000
    predicted = record.generated_tokens or 0
    return Receipt(
        ttft_ms=max(0.0, waited),
        restore_ms=record.restore_ms,
        prefill_ms=record.processing_ms,
        first_token_ms=max(0.0, waited - record.restore_ms - record.processing_ms),
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        predicted_tokens=predicted,
        tokens_per_second=predicted / writing if (record.stream or record.generation_ms) and writing > 0 else 0.0,
        source=_source_of(record),
        miss_reason=record.miss_reason,
        queue_wait_ms=record.queue_ms,
        saved_ms=record.saved_ms or None,
    )


def _first_token_ms(record: RequestRecord) -> float:
    """Return the time until the engine's first token, even if the response was not streamed."""
    return max(0.0, (record.first_ms or record.total_ms or 0.0) - record.generation_ms)


def _source_of(record: RequestRecord) -> Source:
    return next((source for source in Source if source.value == record.source), Source.COLD)


class LastRequests(QWidget):
    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._requests: dict[int, RequestRecord] = {}
        self._shown_record: RequestRecord | None = None
        self.list = RowList(look, _("Recent requests"))
        self.list.current_changed.connect(self._show_current)
        self.receipt: ReceiptView | None = None
        self._details_column = column(spacing=6)
        title = label(_("Recent requests"), "strong")
        column(title, self.list, self._details_column, on=self, spacing=6, margins=(0, 10, 0, 0))
        look.changed.connect(self._restyle)

    def show_requests(self, requests: Sequence[RequestRecord]) -> None:
        self._requests = {record.id: record for record in requests[:_MAX_REQUESTS]}
        self.setVisible(bool(requests))
        self.list.show_rows([_request_row(record) for record in self._requests.values()])
        if self.list.current is None and requests:
            self.list.select(requests[0].id)
        self.list.limit_height(_VISIBLE_ROWS)

    def _show_current(self) -> None:
        chosen = self.list.current
        record = self._requests.get(int(str(chosen.value))) if chosen else None
        if record is self._shown_record:
            return
        self._shown_record = record
        was_open = self.receipt is not None and self.receipt.is_open
        self.receipt = None
        clear(self._details_column)
        if record is None:
            return
        if (receipt := receipt_of(record)) is not None:
            self.receipt = ReceiptView(receipt, self._look)
            self._details_column.addWidget(self.receipt)
            if was_open:
                self.receipt.toggle()
        if (divergence := record.costly_divergence) is not None:
            read = (record.prompt_tokens or 0) - (record.cached_tokens or 0)
            text = divergence.sentence(read, record.processing_ms / 1000)
            self._details_column.addWidget(label(capitalize_first(text) + ".", wraps=True, selectable=True))
            self._details_column.addWidget(
                self._comparison(_("Before"), divergence.earlier_text, _("Now"), divergence.new_text)
            )
        for change in record.changes:
            title, where = _(RULES[change.rule].title), _(change.location)
            sent, passed = _("As sent by the app"), _("As passed to the model")
            self._details_column.addWidget(
                label(_("{title}: {where} was changed.", title=title, where=where), wraps=True)
            )
            self._details_column.addWidget(self._comparison(sent, change.original, passed, change.rewritten))

    def _comparison(self, left_title: str, before: str, right_title: str, after: str) -> QWidget:
        """Return a widget with two texts side by side, starting shortly before the marked difference."""
        made, at = QWidget(), common_prefix_length(before, after)
        same_end = common_prefix_length(before[at:][::-1], after[at:][::-1])
        line = before.rfind("\n", 0, max(0, before.rfind("\n", 0, at))) + 1
        begin = max(line, at - _CONTEXT_CHARACTERS)
        sides = []
        for name, text in ((left_title, before), (right_title, after)):
            excerpt = ("…" if begin else "") + text[begin:]
            hidden = len(text) - len(excerpt)
            box = plain_text(name, code_font(self._look.fonts.mono, self._look.fonts.small), excerpt or _("(nothing)"))
            box.setFixedHeight(box.fontMetrics().lineSpacing() * _VISIBLE_LINES + self._look.px(22))
            highlight(box, make_cursors(box, excerpt, [(at - hidden, len(excerpt) - same_end)]), self._look.theme)
            sides.append(column(label(name, "small"), box, spacing=3))
        row((sides[0], 1), (sides[1], 1), on=made, spacing=10, margins=0)
        return made

    def _restyle(self) -> None:
        self._shown_record = None
        self._show_current()
        self.list.limit_height(_VISIBLE_ROWS)


def _request_row(record: RequestRecord) -> Row:
    tone = Tone.PLAIN if _source_of(record) is Source.COLD else Tone.GOOD
    if record.stage is not Stage.DONE:
        tone = Tone.WARN
    at, receipt = datetime.fromtimestamp(record.started_at).astimezone(), receipt_of(record)
    when = f"{at:%H:%M:%S}" if at.date() == datetime.now().date() else format_datetime(at)
    title = join_parts((when, record.model or _("the model in use")))
    chip = receipt_source_label(receipt) if receipt else ""
    return Row(record.id, title, describe_request(record), chip, tone)
