"""WHAT IS SENT: compressions, each a small setting that makes codecs for vectors."""
