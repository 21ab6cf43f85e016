"""One turn: question, reply and receipt; between turns, titles and preparation.

- **Continuing.** An unfinished reply is continued in place: it is the last message of the prompt, which
  llama-server leaves open. Where states cannot be cut, it also has a save point at its very end.
- **Lost engines.** An engine lost before the first token costs no message, whether it is gone or can no longer
  compute (if sleep loses the GPU, `/health` still reports ok): the next one answers, once.
- **Storage.** The question is on disk before anything else happens; a partial reply is written twice a second. If
  the database fails, the text goes back to the composer (`QuestionNotStored`).
"""
