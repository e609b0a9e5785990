"""The process that holds a model: EngineCore steps it, EngineProc connects it to the frontends."""
