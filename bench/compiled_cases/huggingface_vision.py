"""Forward passes of Hugging Face's vision models, eagerly or compiled, as the documentation of transformers timed them.

    python bench/compiled_cases/huggingface_vision.py vit 16 default

The measured program runs float32 models on the same picture again and again, without gradients
(huggingface/transformers, docs/source/en/perf_torch_compile.md, torch 2.0.1). It downloads weights; this one makes
them up, with the numbers of the downloaded configurations.
"""

import sys
from typing import Any

import torch
from transformers import (
    BeitConfig,
    BeitForImageClassification,
    ConvNextConfig,
    ConvNextForImageClassification,
    MobileNetV2Config,
    MobileNetV2ForSemanticSegmentation,
    ResNetConfig,
    ResNetForImageClassification,
    SegformerConfig,
    SegformerForSemanticSegmentation,
    ViTConfig,
    ViTForImageClassification,
)

import sandtable

NUM_STEPS = 4

MODELS: dict[str, tuple[Any, Any, int]] = {
    "vit": (ViTForImageClassification, ViTConfig(num_labels=1000), 224),
    "beit": (
        BeitForImageClassification,
        BeitConfig(
            num_labels=21841,
            use_absolute_position_embeddings=False,
            use_relative_position_bias=True,
            use_mask_token=False,
        ),
        224,
    ),
    "convnext": (
        ConvNextForImageClassification,
        ConvNextConfig(depths=[3, 3, 27, 3], hidden_sizes=[192, 384, 768, 1536], num_labels=1000),
        224,
    ),
    "resnet": (ResNetForImageClassification, ResNetConfig(num_labels=1000), 224),
    "segformer": (SegformerForSemanticSegmentation, SegformerConfig(num_labels=150, decoder_hidden_size=256), 512),
    "mobilenet": (MobileNetV2ForSemanticSegmentation, MobileNetV2Config(num_labels=21, output_stride=8), 513),
}
"""Model, configuration and width of a picture: vit-base-patch16-224, beit-base-patch16-224-pt22k-ft22k,
convnext-large-224, resnet-50, segformer-b0-finetuned-ade-512-512 and deeplabv3_mobilenet_v2_1.0_513."""


def main() -> None:
    """Make forward passes of a model on so many pictures."""
    name, num_pictures, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    model_class, config, width = MODELS[name]
    with torch.device("cuda"):
        model = model_class(config).eval()
        pictures = torch.zeros(num_pictures, 3, width, width)
    run = model if mode == "eager" else torch.compile(model, mode=mode)
    for _ in range(NUM_STEPS):
        with torch.no_grad():
            run(pixel_values=pictures)
        sandtable.step()


main()
