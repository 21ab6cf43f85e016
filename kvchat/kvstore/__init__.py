"""Store of save points on disk. Knows tokens and files; knows no HTTP and no chat.

`store.BlockStore` is built from `saver`, `restorer`, `inventory` (files, index, limits, deletions) and `staging`. If
no folder can be used, it keeps nothing and says why (`store_without_memory`). One process owns the folder; another
may read (`stored_manifest`, `check_store`).
- **Blocks.** A slot file is split along its token axis: runs of at most 256 tokens' rows, all layers, are blocks,
  files named by their BLAKE3. Runs are also cut where a save point ends, so that every row is written once. All
  else (header, cell metadata, recurrent state, context checkpoints) is stored in separate chunks. A file of unknown
  layout (`blocks/parser.py`) is kept in plain chunks.
- **I/O** (`positioned.py`). Several threads move blocks, piece by piece while a piece is in the cache. A restore
  verifies a block by its XXH3, kept in the index. Rows that the engine has kept since the last save (`UnchangedRows`
  in `engine/api/client.py`) are not read again, except for two blocks.
- **Index** (`index/`, SQLite): save points, their recipes (sealed with a hash; paths in a tree of uses, so that
  what turns share is stored once), a tree of token segments for the longest known prefix, losses, bytes written. No
  lookup, note or deletion scans a whole table; readers never wait for a writer. Impossible content counts as damage
  (`index/schema.py`); a new index is begun then.
- **Audience** (`savepoint.py`): who may reuse a state. What must not be reused is not found. A slot with another
  audience's rows is erased before it is used.
- **Find.** The longest prefix of the prompt among what its owner may reuse. Where a state can be cut (`can_cut`),
  part of a save point will do: the file is composed for exactly that (`layout.cut`). `session/restore_cost.py`
  judges by measured rates whether a restore beats processing.
- **Sliding windows.** llama.cpp b11434 uses a restored window only if its oldest row is older than the next token's
  window, and saves none that old. So a restore gets one more row, of zeros, which is masked for all that follows
  (`with_masked_rows`). A chat no longer than the window has no older token: without checkpoints in the file it
  cannot be restored and is not saved (`Strategy.LONG`).
- **Tiers.** A file still staged is *warm* and used as it is, one rebuilt from blocks is *disk*. A rebuild in memory
  overwrites an existing, mapped file (`memory_files.py`), never one whose engine may still use it. A spare file, as
  large as the largest recent one, is prepared at the lowest priority. For a sliding-window model the file with the
  masked row is made as soon as the save point is absorbed, and stays warm.
- **Sharing.** Rows of one prefix are bit-identical only if they were computed once: two prefills of the same tokens
  with other batch splits differ in rounding. So a new chat with a known system prompt restores it. Save points of a
  deleted conversation that another one begins with pass to that one.
- **Sizes** are disk usage; quota and prune target count everything in the store's folder. The
  storage window adds them up: 0.2 s for 100,000 blocks.
- **Imported memory** (`exchange.py`) cannot be verified from its bytes, so it serves that conversation alone until
  the chat is processed again.
- **Integrity.** Block files exist before the transaction that refers to them; deletion re-checks inside one. A bad
  block is deleted, the save points that need it leave the index, and the user is told once. A file is given to an
  engine only if its header matches the chat's tokens. Leftovers of a killed process are deleted or adopted at the
  next start.
"""
