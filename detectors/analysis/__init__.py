"""Analysis of a request's readings: arithmetic that several causes share."""
