"""Facts about the inference servers, asked out of band."""
