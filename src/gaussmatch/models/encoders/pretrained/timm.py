"""``timm:NAME``: any image network of timm, without its classifier."""

from gaussmatch.models.encoders.backbone import Backbone

image = Backbone.pretrained
