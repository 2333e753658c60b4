"""The built-in tasks: models, and data that nothing is downloaded for.

tasks          every task by name
names          the names alone, without torch
data           digits, text and seeded noise
convolutional  small convolutional nets, AlexNet, VGG-16
resnet         ResNet-50
inception      Inception-v3
unet           a small U-Net
recurrent      LSTM language model, GNMT
gpt            GPT-2's form, small
hugging_face   any model of transformers, from its config
configs        published sizes of these
"""
