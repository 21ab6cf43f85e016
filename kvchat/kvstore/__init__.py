"""Save points on disk. Knows tokens and files; knows no HTTP and no chat.

`store.py` has what a turn is given: `BlockStore`, which has its parts (`parts.py`), saves (`saving.py`), restores
(`restoring.py`) and keeps to its bounds (`housekeeping.py`), or `NoStore`, which keeps nothing and says why.
One process has the folder; another one may read (`KeptMemory`, `check_store`).
- **Blocks.** A slot file is taken apart along its token axis: runs of at most 256 tokens' rows, all layers, are
  blocks, files named by their BLAKE3. Runs are also cut where a save point ends, so that every row is written once:
  the next turn refers to the runs before it and adds its own. What is not rows (header, cell metadata, recurrent
  state, the context checkpoints newer servers append) are chunks of their own. `blocks/parser.py` reads a file to
  its last byte or says `UnknownLayout`; then the bytes are kept in plain chunks. It makes things smaller, never
  wrong.
- **Passes** (`positioned.py` counts them). Blocks are moved by several threads, piece by piece while a piece is in
  the cache. A block's name is its BLAKE3; what proves it at a restore is its XXH3, beside the name in the index.
  A file, as it was saved or never saved, is a plan (`blocks/plan.py`) that `rebuild.py` carries out. A turn's rows
  that the engine has kept since the last save, as its `cache_n` says (`SlotRows` in `engine/speaking/client.py`),
  are believed and not read again, but for two blocks (`absorb.py`).
- **Index** (`index/`, SQLite): save points, their recipes (sealed with a hash; paths in a tree of uses, so that
  what turns share is there once), a tree of token segments for the longest known prefix, what was lost and why,
  bytes written. Every turn boundary is a save point, along all branches, until the budget says otherwise. No
  lookup, note or deletion goes through a whole table; readers have connections of their own and wait for no writer.
  Its tables are strict and checked: whatever in it cannot have been put there counts as damage (`index/schema.py`);
  it is set aside then, and a new one begun.
- **Audience** (`audience.py`). Who may reuse a state: the user's chats share theirs, each program has its own, prepared
  documents are for all, as is a system prompt that two programs with keys have sent, and imported memory serves the
  chat it came with. The token tree is kept per fingerprint and audience: what must not be reused is not found.
  A slot with another audience's rows is erased before it is used.
- **Find.** The longest prefix of the prompt among what its owner may reuse; in the order of their bytes segments that
  begin alike stand together. Where a state can be cut (`can_cut`), part of a save point will do: the file is composed
  for exactly that (`plan.cut`). `session/restore_cost.py` judges by measured rates whether a restore beats reading.
- **Sliding windows.** llama.cpp b11434 uses a restored window only if its oldest row is older than the next token's
  window, and saves none that old. So a restore is given one more row, of zeros, which is masked for all that follows
  (`with_masked_rows`). A chat no longer than the window has no older token: without checkpoints in the file it
  cannot be restored and is not saved (`Strategy.LONG`).
- **Tiers.** An engine's slot folder lies on disk; whether a file lies there or is a link into memory is decided for
  each by what is free now (`staging.py`, `library/memory.staging_room`), so a small `/dev/shm` costs speed and
  nothing else. The store absorbs in the background, off the slot's lock. What is staged still is *warm* and given
  without a pass, what is rebuilt from blocks is *disk*. A rebuild in memory writes over a file that is there and
  mapped (`memory_files.py`), but never over one whose engine was not waited for. A file to spare, as large as the
  largest of late, is made ready at the lowest priority when a model's memory has been planned and after each restore;
  who needs one before takes it as far as it is. It is within the budget and the first to go. Of a
  sliding-window model the file with that row is made as soon as the save point is absorbed, and stays warm.
- **Sharing.** Rows of one prefix are bit-identical only if they were computed once: two prefills of the same tokens
  with other batch splits differ in rounding. That is why a new chat with a known system prompt restores it instead
  of recomputing it. A deleted conversation's save points that another one begins with become that one's.
- **Eviction** (`eviction.py`, pure): by seconds of prefill saved per GB, given recency, shared blocks counted once;
  old turns go before a conversation's last, unless its end alone is enough. What is kept for other programs
  (`program/<name>`) keeps to half of the quota and goes after two weeks without use, and before anything of a chat's;
  of its many threads the ends stay longest, and what several begin with.
- **Sizes** are what the disk allots, and quota and prune target mean everything in the store's folder: blocks,
  index, what is staged or set aside. Triggers in the index keep the sums per conversation, so that the disk panel
  opens at once among 100,000 blocks; `verify` measures and counts anew.
- **Memory that travels** (`exchange.py`). Recipes and tokens of a conversation leave as a
  manifest, its blocks after it. What comes in is bounded, each block proved by its name, and in the index as a whole or
  not at all. Nobody can see from a state whether it is what the model makes of its tokens, so it serves that
  conversation alone, and what grows from it too, until the chat is read anew (`chat/turn/imported_memory.py`).
- **Integrity.** Block files are there before the transaction that refers to them; deletion re-checks inside one. A
  bad block is set aside, what needed it is gone from the index, and the user is told once. A file is given to an
  engine only if its header stands for the chat's tokens. What a killed process left is swept or adopted at the next
  start, blocks without a recipe too.
"""
