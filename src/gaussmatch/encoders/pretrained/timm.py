"""``timm:NAME``: any image network of timm, without its classifier."""

from gaussmatch.encoders.backbone import Backbone

image = Backbone.pretrained
