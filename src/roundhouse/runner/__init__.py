"""The model runner: a step's plan → the model's forward pass → sampled tokens. Tensors become numpy at this edge."""
