"""Rows of the zoo: models of images, of what is in them, where, and how far."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from architecture import EAGER, IMAGES, Architecture, images, pretrained

_VIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
_STAGES = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 2, 1, 1]}
_RESNET = {"embedding_size": 16, **_STAGES, "layer_type": "bottleneck"}
_DETECTOR = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_queries": 10,
}  # fmt: skip


def _vision(
    name: str, model: str, config: str | None = None, size: int = 32, quick: str = "", **values: Any
) -> Architecture:
    sizes = ((2, 0), (3, 0))
    return Architecture(name, pretrained(model, config, **values), images(size), IMAGES, sizes=sizes, quick=quick)


def _backbone() -> transformers.PretrainedConfig:
    return transformers.ResNetConfig(**_RESNET, out_features=["stage2", "stage3", "stage4"])


def _detector(name: str, model: str, **values: Any) -> Architecture:
    def build() -> torch.nn.Module:
        config = getattr(transformers, model.removesuffix("ForObjectDetection") + "Config")
        return getattr(transformers, model)(
            config(use_timm_backbone=False, backbone_config=_backbone(), backbone=None, **_DETECTOR, **values)
        )

    return Architecture(name, build, images(64), IMAGES, sizes=((2, 0), (3, 0)))


def _mask2former() -> torch.nn.Module:
    backbone = transformers.SwinConfig(
        image_size=64, patch_size=4, embed_dim=16, depths=[1, 1, 1, 1], num_heads=[2, 2, 4, 4], window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = transformers.Mask2FormerConfig(
        backbone_config=backbone, feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=48,
        encoder_layers=1, decoder_layers=2, num_attention_heads=4, dim_feedforward=48, num_queries=10,
    )  # fmt: skip
    return transformers.Mask2FormerModel(config)


def _upernet() -> torch.nn.Module:
    backbone = transformers.ConvNextConfig(**_STAGES, out_features=["stage1", "stage2", "stage3", "stage4"])
    config = transformers.UperNetConfig(
        backbone_config=backbone, hidden_size=32, pool_scales=[1, 2, 3, 6], auxiliary_in_channels=32, num_labels=5
    )
    return transformers.UperNetForSemanticSegmentation(config)


CLASSIFIERS = [
    _vision("ViT", "ViTForImageClassification", quick="static", **_VIT),
    _vision("DeiT", "DeiTModel", **_VIT),
    _vision("BEiT", "BeitModel", **_VIT, use_relative_position_bias=True, use_mask_token=False,
            **EAGER),
    _vision("DINOv2", "Dinov2Model", **_VIT),
    _vision("DINOv2 at another size", "Dinov2Model", **_VIT, size=48),
    _vision("DINOv3", "DINOv3ViTModel", **_VIT, num_register_tokens=2),
    _vision("CLIP vision tower", "CLIPVisionModel", "CLIPVision", **_VIT),
    _vision("SigLIP vision tower", "SiglipVisionModel", "SiglipVision", **_VIT),
    _vision("Swin", "SwinModel", **_SWIN, **EAGER),
    _vision("Swinv2", "Swinv2Model", **_SWIN),
    _vision("PVTv2", "PvtV2Model", image_size=64, depths=[1, 1, 1, 1], hidden_sizes=[16, 16, 32, 32],
            num_attention_heads=[1, 1, 2, 2], size=64),
    _vision("LeViT", "LevitModel", image_size=64, hidden_sizes=[16, 32, 32], num_attention_heads=[2, 2, 2],
            depths=[1, 1, 1], key_dim=[8, 8, 8], down_ops=[["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 2, 4, 2, 2]],
            size=64),
    _vision("CvT", "CvtModel", embed_dim=[16, 32, 32], num_heads=[1, 2, 2], depth=[1, 2, 3], size=64),
    _vision("MobileViT", "MobileViTModel", image_size=64, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16,
            24, 32, 40], num_attention_heads=2, size=64),
    _vision("MobileViTv2", "MobileViTV2Model", width_multiplier=0.25, n_attn_blocks=[1, 1, 1], size=64),
    _vision("PoolFormer", "PoolFormerModel", depths=[1, 1, 1, 1], hidden_sizes=[16, 16, 24, 32], size=64),
    _vision("FocalNet", "FocalNetModel", image_size=32, patch_size=2, embed_dim=16, depths=[1, 1],
            hidden_sizes=[16, 32], focal_levels=[2, 2], focal_windows=[3, 3]),
    _vision("ConvNeXt", "ConvNextModel", quick="static", **_STAGES, size=64),
    _vision("ConvNeXtV2", "ConvNextV2Model", **_STAGES, size=64),
    _vision("ResNet", "ResNetForImageClassification", **_RESNET, size=64),
    _vision("BiT", "BitModel", embedding_size=32, hidden_sizes=[32, 32, 64, 64], depths=[1, 1, 1, 1], num_groups=8,
            size=64),
    _vision("RegNet", "RegNetModel", embedding_size=16, hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 1, 1],
            groups_width=8, size=64),
    _vision("MobileNetV1", "MobileNetV1Model", depth_multiplier=0.25, image_size=64, size=64),
    _vision("MobileNetV2", "MobileNetV2Model", depth_multiplier=0.25, image_size=64, size=64),
    _vision("EfficientNet", "EfficientNetModel", image_size=64, width_coefficient=0.25, depth_coefficient=0.4,
            hidden_dim=320, size=64),
]  # fmt: skip

DENSE = [
    _vision("SegFormer", "SegformerForSemanticSegmentation", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1],
            num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=32, size=64, quick="static"),
    _vision("DPT", "DPTForDepthEstimation", **(_VIT | {"num_hidden_layers": 4}), backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[8, 16, 24, 32], fusion_hidden_size=16, is_hybrid=False),
    _vision("Swin2SR", "Swin2SRForImageSuperResolution", image_size=16, patch_size=1, embed_dim=16, depths=[2],
            num_heads=[2], window_size=4, upscale=2, size=16),
    Architecture("UperNet", _upernet, images(64), IMAGES, sizes=((2, 0), (3, 0))),
    Architecture("Mask2Former", _mask2former, images(64), IMAGES, sizes=((2, 0), (3, 0))),
    _vision("Segment Anything, image encoder", "SamVisionModel", "SamVision", hidden_size=32, num_hidden_layers=2,
            num_attention_heads=4, image_size=64, patch_size=8, output_channels=16, window_size=4,
            global_attn_indexes=[1], mlp_dim=48, size=64),
]  # fmt: skip

DETECTORS = [
    _detector("DETR", "DetrForObjectDetection"),
    _detector("Deformable DETR", "DeformableDetrForObjectDetection", num_feature_levels=3),
    _vision("YOLOS", "YolosForObjectDetection", **(_VIT | {"image_size": [32, 32]}), num_detection_tokens=8),
]

VISION = [*CLASSIFIERS, *DENSE, *DETECTORS]
