"""The HTTP side: routes over the engine, errors as answers, authentication, streams, and the document of it all."""
