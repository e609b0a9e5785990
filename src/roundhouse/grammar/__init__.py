"""What an answer has to be (`StructuredOutputsParams`) as masks over the vocabulary, by llguidance; no torch here."""
