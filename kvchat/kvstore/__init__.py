"""On-disk store of save points: the engine's saved states (KV caches), each found by the tokens it was computed from.

It works with tokens and files, independently of HTTP and chats.

`store.BlockStore` is built from `saver`, `restorer`, `inventory` (files, index, limits, deletions) and `staging`. If
no folder can be used, it saves nothing and gives the reason (`store_without_memory`). Only one process owns the
folder; others may read it (`stored_manifest`, `check_store`).
- **Blocks.** A slot file is split by token: a block is a file with all layers' rows of at most 256 tokens, named by
  its BLAKE3. Blocks also end where a save point ends, so that every row is written once. The rest of the slot file
  (header, cell metadata, recurrent state, context checkpoints) is stored in separate chunks. A file of unknown layout
  (`blocks/parser.py`) is stored as plain chunks.
- **I/O** (`positioned.py`). Several threads copy blocks in pieces that fit the CPU cache. A restore verifies a block
  by its XXH3, stored in the index. Rows that the engine has kept since the last save (`UnchangedRows` in
  `engine/api/client.py`) are not read again, except for two blocks.
- **Index** (`index/`, SQLite): save points, their recipes (sealed with a hash, and stored as paths in a tree, so that
  turns share links), a tree of token segments to find the longest known prefix, losses, and bytes written. Lookups,
  inserts and deletions scan no whole table; readers never wait for a writer. An index with impossible values counts
  as damaged (`index/schema.py`) and is replaced by an empty one.
- **Audience** (`savepoint.py`): the owners that may reuse a state. A lookup finds no other states. A slot with rows of
  another audience is erased before use.
- **Find** returns the save point with the longest prefix of the prompt that its owner may reuse. If the state can be
  cut (`can_cut`), a file of only that prefix is composed (`layout.cut`). `session/restore_cost.py` decides from
  measured rates whether a restore is faster than prefill.
- **Sliding windows.** llama.cpp b11434 uses a restored window only if its oldest row is older than the next token's
  window, and saves none that old. So a restored file gets an extra row of zeros, masked for all later tokens
  (`with_masked_rows`). A chat no longer than the window has no older token: without checkpoints in the file it
  cannot be restored and is not saved (`Strategy.LONG`).
- **Tiers.** A staged slot file is *warm* and used as it is; a file rebuilt from blocks is *disk*. A rebuild in memory
  overwrites an existing, mapped file (`memory_files.py`), but never one that an engine may still read. A spare file,
  as large as the largest recent one, is prepared at the lowest priority. For a sliding-window model, the file with
  the masked row is built as soon as the save point is absorbed, and stays warm.
- **Sharing.** The rows of a prefix are shared only if they were computed once: two prefills of the same tokens in
  different batches differ in rounding. So a new chat restores a known system prompt. When a conversation is deleted,
  another conversation that continues some of its save points takes these over.
- **Sizes** are disk usage. Quota and prune target count everything in the store's folder. The storage window computes
  the sizes in 0.2 s for 100,000 blocks.
- **Imported memory** (`exchange.py`) cannot be verified from its bytes, so only the imported conversation may reuse
  it. The memory of a conversation that is reprocessed on this computer is not restricted.
- **Integrity.** Block files are written before the transaction that refers to them, and deleted within one. A bad
  block is deleted with the save points that need it, and the user is notified once. A file is given to an engine only
  if its header matches the save point's tokens. Files left by a killed process are deleted or adopted at the next
  start.
"""
