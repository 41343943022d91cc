"""Fine-tuning: pretrained networks, what of them is trained by which method, frozen beginnings, texts as tokens."""
