"""Save points on disk. Knows tokens and files; knows no HTTP and no chat.

`store.py` has what a turn is given: `BlockStore`, built up from its files, index and housekeeping (`parts.py`), saving
(`saving.py`) and restoring (`restoring.py`); or `NoStore`, which keeps nothing and says why.
One process has the folder; another one may read (`KeptMemory`, `check_store`).
- **Blocks.** A slot file is taken apart along its token axis: runs of at most 256 tokens' rows, all layers, are
  blocks, files named by their BLAKE3. Runs are also cut where a save point ends, so that every row is written once.
  What is not rows (header, cell metadata, recurrent state, context checkpoints) are chunks of their own.
  `blocks/parser.py` reads a file to its last byte or raises `UnknownLayout`; then the bytes are kept in plain chunks.
- **Passes** (`positioned.py` counts them). Blocks are moved by several threads, piece by piece while a piece is in
  the cache. A block's name is its BLAKE3; a restore proves it by its XXH3, kept in the index. Rows that the engine has
  kept since the last save (`SlotRows` in `engine/speaking/client.py`) are not read again, but for two blocks.
- **Index** (`index/`, SQLite): save points, their recipes (sealed with a hash; paths in a tree of uses, so that
  what turns share is there once), a tree of token segments for the longest known prefix, losses, bytes written.
  No lookup, note or deletion goes through a whole table; readers have connections of their own and wait for no writer.
  Its tables are strict and checked: anything that cannot have been put there counts as damage (`index/schema.py`);
  a new index is begun then.
- **Audience** (`audience.py`): who may reuse a state. The token tree is kept per fingerprint and audience: what must
  not be reused is not found. A slot with another audience's rows is erased before it is used.
- **Find.** The longest prefix of the prompt among what its owner may reuse. Where a state can be cut (`can_cut`), part
  of a save point will do: the file is composed for exactly that (`layout.cut`). `session/restore_cost.py` judges by
  measured rates whether a restore beats reading.
- **Sliding windows.** llama.cpp b11434 uses a restored window only if its oldest row is older than the next token's
  window, and saves none that old. So a restore is given one more row, of zeros, which is masked for all that follows
  (`with_masked_rows`). A chat no longer than the window has no older token: without checkpoints in the file it
  cannot be restored and is not saved (`Strategy.LONG`).
- **Tiers.** An engine's slot folder lies on disk; whether a file lies there or is a link into memory is decided for
  each by what is free now (`staging.py`, `library/memory.staging_room`). What is staged still is *warm* and given
  without a pass, what is rebuilt from blocks is *disk*. A rebuild in memory writes over a file that is there and
  mapped (`memory_files.py`), never over one whose engine was not waited for. A spare file, as large as the largest of
  late, is made ready at the lowest priority. Of a sliding-window model the file with the masked row is made as soon as
  the save point is absorbed, and stays warm.
- **Sharing.** Rows of one prefix are bit-identical only if they were computed once: two prefills of the same tokens
  with other batch splits differ in rounding. That is why a new chat with a known system prompt restores it. A deleted
  conversation's save points that another one begins with become that one's.
- **Eviction** (`eviction.py`, pure): by seconds of prefill saved per GB, given recency, shared blocks counted once.
- **Sizes** are what the disk allots; quota and prune target mean everything in the store's folder. Triggers in the
  index keep the sums per conversation, so that the disk panel opens at once; `verify` measures and counts anew.
- **Memory that travels** (`exchange.py`): recipes and tokens of a conversation as a manifest, its blocks after it. What
  comes in is bounded, each block proved by its name, and in the index as a whole or not at all. A state cannot be
  verified from its bytes, so it serves that conversation alone until the chat is read anew.
- **Integrity.** Block files are there before the transaction that refers to them; deletion re-checks inside one. A
  bad block is deleted, what needed it is gone from the index, and the user is told once. A file is given to an
  engine only if its header stands for the chat's tokens. What a killed process left is swept or adopted at the next
  start.
"""
