"""Cases of the ONNX rules that resize, sample and unfold images."""

import io
import itertools

import numpy as np
import PIL.Image

from onnx_models import case, ints

F = np.float32


def scales(*values: float) -> np.ndarray:
    """Scales of Resize."""
    return np.array(values, F)


MODES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
RESIZES = [
    *(
        case("Resize", "x[1,2,4,6] none none @s", s=ints(1, 2, 7, 3), opset=19,
             mode="nearest", coordinate_transformation_mode=mode, nearest_mode=rounding)
        for mode, rounding in itertools.product(MODES, ROUNDINGS)
    ),
    *(
        case("Resize", "x[1,2,4,6] none none @s", s=ints(1, 2, 7, 3), opset=19, mode=mode,
             coordinate_transformation_mode=coordinates)
        for mode, coordinates in itertools.product(("linear", "cubic"), MODES)
    ),
    case("Resize", "x[1,2,4,6] none @s", s=scales(1, 1, 2, 3)),
    case("Resize", "x[1,2,4,6] none @s", s=scales(1, 1, 2.5, 0.4), mode="linear"),
    case("Resize", "x[1,2,4,6] none @s", s=scales(1, 1, 2.5, 0.4), mode="linear", oracle="reference"),
    case("Resize", "x[1,2,4,6] none @s", s=scales(1, 1, 0.7, 1.3), mode="cubic", cubic_coeff_a=-0.5),
    case("Resize", "x[1,2,4,6] none @s", s=scales(1, 1, 0.7, 1.3), mode="cubic", exclude_outside=1),
    case("Resize", "x[1,2,4,6] none @s", s=scales(1, 1, 0.7, 1.3), mode="linear", oracle="reference",
         coordinate_transformation_mode="align_corners"),
    case("Resize", "x[1,2,9,7] none none @s", s=ints(1, 2, 4, 3), mode="linear", antialias=1, oracle="reference"),
    case("Resize", "x[1,2,9,7] none none @s", s=ints(1, 2, 4, 3), mode="cubic", antialias=1, oracle="reference"),
    case("Resize", "x[1,2,9,7] none none @s", s=ints(1, 2, 4, 9), mode="cubic", antialias=1, exclude_outside=1,
         oracle="reference"),
    case("Resize", "x[1,2,9,7] none none @s", s=ints(4, 3), axes=[-2, 3], mode="linear"),
    case("Resize", "x[1,2,9,7] none none @s", s=ints(4, 14), axes=[3, 2], oracle="reference"),
    case("Resize", "x[1,2,9,7] none none @s", s=ints(5, 5), axes=[2, 3], keep_aspect_ratio_policy="not_larger"),
    case("Resize", "x[1,2,9,7] none none @s", s=ints(5, 5), axes=[2, 3], keep_aspect_ratio_policy="not_smaller"),
    case("Resize", "x[1,2,4,6] @r none @s", r=scales(0, 0, 0.2, 0.3, 1, 1, 0.7, 1.2), s=ints(1, 2, 3, 5),
         mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.0),
    case("Resize", "x[1,2,4,6] @r none @s", r=scales(0, 0, 0.2, 0.3, 1, 1, 0.7, 0.9), s=ints(1, 2, 3, 1),
         mode="linear", coordinate_transformation_mode="tf_crop_and_resize"),
    case("Resize", "x[1,2,4,6] @r none @s", r=scales(0.4, 0.5, 0.8, 1.5), s=ints(3, 5), axes=[2, 3], oracle="reference",
         coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=-1.0),
    case("Resize", "x[5] none @s", s=scales(2.5), mode="linear", oracle="reference"),
    case("Resize", "x[1,2,3,2,3] none @s", s=scales(1, 1, 2, 2, 1.5), mode="linear", oracle="reference"),
    case("Resize", "x[1,2,4,6] none @s", s=scales(1, 1, 1, 1)),
    case("Resize", "x:f16[1,2,4,6] none @s", s=scales(1, 1, 2, 2), mode="cubic", oracle="reference"),
    case("Resize", "x:f64[1,2,4,6] none @s", s=scales(1, 1, 2, 2), mode="linear", oracle="reference"),
    case("Resize", "x:i64>-9<9[1,2,4,6] none @s", s=scales(1, 1, 2.5, 2), oracle="reference"),
    case("Resize", "x:u8<255[1,2,4,6] none @s", s=scales(1, 1, 2, 2), mode="cubic", oracle="reference"),
]  # fmt: skip
CONV_TRANSPOSES = [
    case("ConvTranspose", "x[1,3,4,5] w[3,4,3,3] b[4]"),
    case("ConvTranspose", "x[2,3,4,5] w[3,4,2,2] b[4]", strides=[2, 2]),
    case("ConvTranspose", "x[1,4,4,5] w[4,3,4,3] b[6]", group=2, strides=[2, 3], pads=[1, 0, 1, 2]),
    case("ConvTranspose", "x[1,4,4,5] w[4,3,3,3]", strides=[2, 2], dilations=[2, 1], output_padding=[1, 0],
         kernel_shape=[3, 3]),
    case("ConvTranspose", "x[1,4,4,5] w[4,1,3,3]", group=4, dilations=[1, 2], pads=[2, 1, 0, 3]),
    case("ConvTranspose", "x[1,3,4,5] w[3,4,3,3]", strides=[2, 2], auto_pad="SAME_UPPER"),
    case("ConvTranspose", "x[1,3,4,5] w[3,4,3,3]", strides=[2, 2], auto_pad="SAME_LOWER"),
    case("ConvTranspose", "x[1,3,4,5] w[3,4,3,3]", strides=[2, 2], auto_pad="VALID"),
    case("ConvTranspose", "x[1,3,4,5] w[3,4,3,3]", strides=[3, 2], output_shape=[10, 9]),
    case("ConvTranspose", "x[1,3,3,3] w[3,4,3,3]", strides=[3, 2], output_shape=[10, 8], oracle="reference"),
    case("ConvTranspose", "x[1,3,7] w[3,2,4] b[2]", strides=[3], pads=[1, 1]),
    case("ConvTranspose", "x[1,2,3,2,4] w[2,3,2,3,2]", strides=[2, 1, 2], output_padding=[1, 0, 1]),
]  # fmt: skip
SAMPLES = [
    *(
        case(
            "GridSample",
            "x[2,3,5,4] g>-1.6<1.6[2,6,7,2]",
            opset=20,
            mode=mode,
            padding_mode=padding,
            align_corners=align,
        )
        for mode, padding, align in itertools.product(
            ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)
        )
    ),
    case("GridSample", "x[2,3,5,4] g>-1.6<1.6[2,6,7,2]", opset=16, mode="bicubic", padding_mode="border"),
    case("GridSample", "x[1,2,4,5,6] g>-1.3<1.3[1,3,2,7,3]", opset=20, padding_mode="reflection"),
    case("GridSample", "x[1,2,4,5,6] g>-1.3<1.3[1,3,2,7,3]", opset=20, mode="nearest", align_corners=1),
]
GRIDS = [
    case("AffineGrid", "x[2,2,3] @s", opset=20, s=ints(2, 3, 4, 5), oracle="reference"),
    case("AffineGrid", "x[2,2,3] @s", opset=20, s=ints(2, 3, 4, 5), align_corners=1, oracle="reference"),
    case("AffineGrid", "x:f64[1,3,4] @s", opset=20, s=ints(1, 2, 3, 4, 5)),
    case("AffineGrid", "x[3,3,4] @s", opset=20, s=ints(3, 1, 1, 2, 3)),
    case("AffineGrid", "x[2,3,4] @s", opset=20, s=ints(2, 2, 3, 4, 5), align_corners=1),
]
DEFORMED = [
    case("DeformConv", "x[2,3,5,6] w[4,3,2,2] o[2,8,4,5]", opset=19),
    case("DeformConv", "x[1,4,5,6] w[6,2,3,2] o[1,24,5,3] b[6] m[1,12,5,3]", opset=19, group=2, offset_group=2,
         strides=[1, 2], pads=[1, 0, 1, 1], kernel_shape=[3, 2]),
    case("DeformConv", "x[1,1,7,7] w[1,1,3,3] o[1,18,3,3] b[1]", opset=19, dilations=[2, 2]),
]  # fmt: skip

# Regions inside, across an edge, outside, of no width, and of one element.
ROIS = np.array([[0, 0, 5, 4], [-3, 2, 9, 9], [20, 20, 30, 30], [2, 3, 2, 3], [1.4, 0.6, 2.1, 6.3]], F)
NUMBERED = np.concatenate([np.array([[0], [1], [1], [0], [1]], F), ROIS], 1)  # of an image each
REGIONS = [
    *(
        case("RoiAlign", "x[2,3,6,7] @r @b", r=ROIS, b=ints(0, 1, 1, 0, 1), output_height=2, output_width=3,
             opset=opset, sampling_ratio=ratio, spatial_scale=0.9, mode=mode, oracle=oracle, **how)
        for ratio in (0, 1, 3)
        for mode, opset, oracle, how in [
            ("avg", 13, "ort", {}), ("avg", 16, "ort", {}),
            *(
                (mode, opset, "reference", {"coordinate_transformation_mode": f"{how}half_pixel"})
                for how in ("", "output_")
                for mode, opset in (("avg", 22), ("max", 16))
            ),
        ]
    ),
    case("RoiAlign", "x:f64[2,3,6,7] r:f64>0<6[4,4] b:i64<2[4]", opset=16, sampling_ratio=2),
    case("RoiAlign", "x:f16[2,3,6,7] r:f16>0<6[4,4] b:i64<2[4]", opset=16, sampling_ratio=2, output_height=2),
    case("RoiAlign", "x[1,2,1,1] r>0<2[4,4] b:i64<1[4]", opset=16, output_height=2, sampling_ratio=2),
    case("MaxRoiPool", "x[2,3,6,7] @r", r=NUMBERED, pooled_shape=[2, 3], spatial_scale=0.9),
    case("MaxRoiPool", "x[2,3,6,7] @r", r=NUMBERED, pooled_shape=[1, 8]),
    case("MaxRoiPool", "x[2,1,1,9] @r", r=NUMBERED[:2], pooled_shape=[3, 3], spatial_scale=0.5),
]  # fmt: skip


def encoded(format: str, shape: tuple[int, ...] = (6, 9, 3)) -> np.ndarray:
    """The bytes of a file with an image of random pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    with io.BytesIO() as file:
        PIL.Image.fromarray(pixels).save(file, format=format)
        return np.frombuffer(file.getvalue(), np.uint8)


DECODED = [
    *(
        case("ImageDecoder", "@x", x=encoded(format), pixel_format=pixels, opset=20, oracle="reference")
        for format, pixels in [
            ("png", "RGB"), ("png", "BGR"), ("png", "Grayscale"), ("bmp", "RGB"), ("jpeg", "RGB"), ("ppm", "BGR"),
            ("tiff", "RGB"), ("webp", "RGB"), ("jpeg2000", "RGB"), ("jpeg", "Grayscale"),
        ]
    ),
    case("ImageDecoder", "@x", x=encoded("png", (5, 7)), pixel_format="Grayscale", opset=20, oracle="reference"),
]  # fmt: skip

IMAGES = [*DEFORMED, *RESIZES, *CONV_TRANSPOSES, *SAMPLES, *GRIDS, *REGIONS, *DECODED]
