"""What is told of how long the next reply will be waited for."""

from __future__ import annotations

from dataclasses import dataclass

from kvchat.session.proof import Source
from kvchat.words.language import N_, _, several
from kvchat.words.wording import STILL_LOADED, TimeRange, roughly

NOTICEABLE_S = 1.0  # a shorter wait is not told
_RESTORED = (Source.WARM, Source.DISK)


@dataclass(frozen=True)
class Forecast:
    """What the next reply of a chat will wait for."""

    source: Source  # where what was said so far will come from
    to_read: int  # tokens, after Send
    wait: TimeRange | None = None  # for the first token; None where too little is known of it
    begun: bool = True  # something was said

    @property
    def noticeable(self) -> bool:
        """Whether the wait is worth a word."""
        return self.wait is not None and self.wait.most >= NOTICEABLE_S

    @property
    def of_chat(self) -> str:
        """For a chat in a list: where it is, and what that means."""
        if not self.begun:
            return _("nothing said yet")
        where = _(_WHERE[self.source])
        if self.wait and self.noticeable:
            return _("{where}: answers in {time}", where=where, time=roughly(self.wait))
        return f"{where}: {_(_OTHERWISE[self.source])}" if self.source in _OTHERWISE else where

    @property
    def of_message(self) -> str:
        """For a message that is being written: "about 4 s: 2,100 tokens to read"; empty where nobody would notice."""
        if self.wait is None or not self.noticeable:
            return ""
        time = roughly(self.wait)
        if self.source in _RESTORED:
            return several(
                self.to_read,
                "{time}: loading it, and {count} token to read",
                "{time}: loading it, and {count} tokens to read",
                time=time,
            )
        return several(self.to_read, "{time}: {count} token to read", "{time}: {count} tokens to read", time=time)


_WHERE = {
    Source.AHEAD: STILL_LOADED,
    Source.HOT: STILL_LOADED,
    Source.WARM: N_("remembered, in memory"),
    Source.DISK: N_("remembered, on disk"),
    Source.COLD: N_("must be read again"),
}
_OTHERWISE = dict.fromkeys(_RESTORED, N_("comes back in a moment")) | {
    Source.AHEAD: N_("answers at once"),
    Source.HOT: N_("answers at once"),
}
