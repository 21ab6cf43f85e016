"""What the storage window says of save points, sharing and pruning. Pure functions on values."""

from __future__ import annotations

from datetime import datetime, timedelta

from kvchat.kvstore.savepoint import ConversationUsage, PrunedConversation, PrunePlan, StoreUsage, program_of
from kvchat.session.restore_cost import BreakEven
from kvchat.store_service import chats_in_words
from kvchat.words.wording import roughly, several, since, size

_NEAR = 0.9  # of the size asked for; a plan that leaves less says so


def spared_bytes(usage: StoreUsage) -> int:
    """What whole slot files would take beyond what is on disk; never below 0."""
    return max(0, usage.logical_bytes - usage.physical_bytes)


def sharing(usage: StoreUsage) -> str:
    """What keeping every row once saves, in a sentence."""
    if not usage.save_points:
        return ""
    spared = spared_bytes(usage)
    if not spared and any(one.shared_bytes for one in usage.conversations):
        return "What chats share is kept once; it is too little yet to spare anything."
    if not spared:
        return "Nothing is shared yet: turns and chats that begin alike will be kept once."
    share = 100 * spared / usage.logical_bytes
    percent = f"{share:.0f}%" if share < 99.5 else "more than 99%"
    return f"{size(spared)} spared ({percent}): whole files would take {size(usage.logical_bytes)}."


def limits_in_words(usage: StoreUsage, max_age_days: int | None) -> str:
    """What makes save points go by themselves."""
    limit, above = f"limit of {size(usage.quota_bytes)}", "what spares the least reading for its size goes first."
    words = f"Above the {limit}, {above}"
    if holds := chats_in_words(usage.quota_bytes, usage.chat_bytes):
        words = f"The {limit} {holds}. Above it, {above}"
    if any(program_of(one.conversation_id) for one in usage.conversations):
        words += f" Other programs go before chats; they keep {size(usage.programs_quota_bytes)} at most."
    if max_age_days is not None:
        words += f" What was not used for {several(max_age_days, 'day')} goes as well."
    return words


def break_even_in_words(pays: BreakEven | None) -> str:
    """From where on restoring beats reading, and why; empty where it was not measured yet."""
    if pays is None:
        return ""
    speed = size(1000 / pays.restore_ms_per_byte)
    rates = f"(reading {pays.prefill_ms_per_token:.2g} ms a token, loading {speed}/s)"
    if pays.tokens is None:
        return f"On this computer loading is never quicker than reading {rates}."
    return f"On this computer loading is quicker than reading from about {pays.tokens:,} tokens on {rates}."


def use_of(usage: ConversationUsage, now: datetime, seconds_saved: float = 0.0) -> str:
    """When a conversation was last used, and what its save points are good for."""
    words = f"used {since(usage.last_used_at, now.astimezone(usage.last_used_at.tzinfo))}"
    if program_of(usage.conversation_id):
        words = f"{several(usage.save_points, 'prompt')} kept · {words}"
    if seconds_saved >= 1:
        return f"{words} · has saved {roughly(seconds_saved)}"
    if usage.prefill_seconds:
        return f"{words} · reading it again: {roughly(usage.prefill_seconds)}"
    return words


def split_of(usage: ConversationUsage) -> str:
    """How much of a conversation's bytes it keeps alone, and how much others keep as well."""
    if not usage.bytes:
        return "nothing kept"
    if not usage.shared_bytes:
        return "all its own"
    return f"{size(usage.exclusive_bytes)} own, {size(usage.shared_bytes)} shared"


def loss_of(loss: PrunedConversation) -> str:
    """What a prune would take from one conversation."""
    if loss.save_points_left and program_of(loss.conversation_id):
        return f"would lose {several(loss.save_points, 'prompt')}: {size(loss.bytes_freed)}"
    if loss.save_points_left:
        return f"would lose {several(loss.save_points, 'old turn')}: {size(loss.bytes_freed)}"
    return f"would have to be read again: {roughly(loss.prefill_seconds)}"


def plan_in_words(plan: PrunePlan, target_bytes: int) -> str:
    """What a plan removes and what that costs."""
    pinned = f" It cannot go below {size(plan.bytes_left)}: what is always kept stays, and the list of what is kept."
    missed = pinned if plan.bytes_left > max(target_bytes, 0) else ""
    if not plan.save_point_ids:
        return f"Nothing would go.{missed}"
    chats = [one for one in plan.conversations if not program_of(one.conversation_id)]
    thinned = [one for one in chats if one.save_points_left]
    cold, parts = len(chats) - len(thinned), list[str]()
    if prompts := sum(one.save_points for one in plan.conversations) - sum(one.save_points for one in chats):
        parts.append(f"{several(prompts, 'prompt')} of other programs")
    if thinned:
        turns = several(sum(one.save_points for one in thinned), "old turn")
        parts.append(f"{turns} of {several(len(thinned), 'chat')}")
    if cold:
        parts.append(several(cold, "chat must be read again", "chats must be read again"))
    cost = f"reading it all again would take {roughly(plan.prefill_seconds)}"
    more = plan.bytes_left < _NEAR * target_bytes
    whole = f" That leaves {size(plan.bytes_left)}: the memory of one reply goes as a whole." if more else ""
    return f"Frees {size(plan.bytes_freed)}: {'; '.join([*parts, cost])}.{missed}{whole}"


def expiry_in_words(usage: StoreUsage, days: int, now: datetime) -> str:
    """What goes when save points not used for so many days are deleted, as far as the usage tells."""
    limit = now - timedelta(days=days)
    chats = [one for one in usage.conversations if not program_of(one.conversation_id)]
    cold = [one for one in chats if one.save_points and not one.pinned and one.last_used_at < limit]
    if not cold:
        return "No chat must be read again by it now; old turns may go. Messages stay."
    becomes = several(len(cold), "chat must be read again", "chats must be read again")
    cost = roughly(sum(one.prefill_seconds for one in cold))
    return f"{becomes}; reading it all again would take {cost}. Old turns of others may go as well. Messages stay."
