"""The live page: plain files, served as they are."""
