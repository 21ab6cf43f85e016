"""One turn: the question on disk, the reply and its receipt; between turns, titles and preparing.

- **Continuing.** An unfinished reply goes on in place: it is the last message of the prompt, which llama-server leaves
  open. Where states cannot be cut it has a save point at its very end as well.
- **Lost engines.** An engine lost before the first word costs no message, be it gone or no longer able to compute (a
  GPU lost in the computer's sleep leaves `/health` well): the next one answers, once.
- **Storage.** The question is on disk before anything else happens; a partial reply is written twice a second. If the
  database fails, the text goes back to the composer (`QuestionNotStored`).
"""
