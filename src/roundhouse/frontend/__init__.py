"""What stands between the OpenAI server and the mesh: AsyncLLM, its processors and its view of the engines."""
