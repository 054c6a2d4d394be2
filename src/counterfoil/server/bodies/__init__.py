"""What the headers of a request say about its body: media type, charset and content coding."""
