"""Denoising iterations of Stable Diffusion 1.5, eagerly or compiled, as the documentation of diffusers measured them.

    python bench/compiled_cases/stable_diffusion.py 4 reduce-overhead

The measured program is text to image with 512 x 512 pixels in float16 (huggingface/diffusers, pull request 3313): a
U-Net on latents of 64 x 64 in channels-last format, called with twice the images because of guidance, and compiled with
CUDA graphs. The scheduler's update is left out: it is a few kernels on small tensors. Weights are made up.
"""

import sys

import torch
from diffusers import UNet2DConditionModel

import sandtable

NUM_STEPS = 4
TEXT_TOKENS, TEXT_WIDTH = 77, 768


def main() -> None:
    """Make iterations for so many images at once."""
    num_images, mode = int(sys.argv[1]), sys.argv[2]
    with torch.device("cuda"):
        unet = UNet2DConditionModel(
            sample_size=64,
            cross_attention_dim=TEXT_WIDTH,
            attention_head_dim=8,
            block_out_channels=(320, 640, 1280, 1280),
            layers_per_block=2,
        ).to(torch.float16)
        latents = torch.randn(num_images, 4, 64, 64, dtype=torch.float16)
        text = torch.randn(2 * num_images, TEXT_TOKENS, TEXT_WIDTH, dtype=torch.float16)
    unet.to(memory_format=torch.channels_last)
    run = unet if mode == "eager" else torch.compile(unet, mode=mode, fullgraph=True)
    timestep = torch.tensor(500, device="cuda")
    for _ in range(NUM_STEPS):
        with torch.no_grad():
            noise = run(torch.cat([latents] * 2), timestep, encoder_hidden_states=text, return_dict=False)[0]
            unconditional, conditional = noise.chunk(2)
            latents = latents - 0.01 * (unconditional + 7.5 * (conditional - unconditional))
        sandtable.step()


main()
