"""Which files each data set needs, and where their publishers offer them."""

from __future__ import annotations

WHERE = {
    "coco": """\
MS-COCO (Lin et al. 2014). In one folder:
  annotations/captions_train2014.json, captions_val2014.json      the captions
  annotations/instances_train2014.json, instances_val2014.json    object classes (for PMRP)
  train2014/, val2014/                                            the photos
  dataset_coco.json      Karpathy's split; or coco_{train,restval,dev,test}_ids.npy
From: cocodataset.org, page "Download" (2014 train/val images and annotations); dataset_coco.json
from Andrej Karpathy's page "Deep Visual-Semantic Alignments" (caption_datasets.zip); the lists of
ids with the code of VSE++ and PVSE. The 2017 files work as well, without Karpathy's split.""",
    "cxc": """\
Crisscrossed Captions (Parekh et al. 2021), beside COCO:
  sits_val.csv, sits_test.csv
From: github.com/google-research-datasets/Crisscrossed-Captions, folder data.
Use: --data.name coco --data.cxc FOLDER.""",
    "flickr30k": """\
Flickr30K (Young et al. 2014). In one folder:
  flickr30k-images/ (or images/)     the photos
  dataset_flickr30k.json             captions and Karpathy's split (caption_datasets.zip); or
  results_20130124.token             the captions, with train.txt, val.txt, test.txt
From: the authors' form at shannon.cs.illinois.edu/DenotationGraph; the three lists from
github.com/BryanPlummer/flickr30k_entities.""",
    "flickr8k": """\
Flickr8k (Hodosh et al. 2013). In one folder:
  images/ (or Flicker8k_Dataset/)    the photos
  Flickr8k.token.txt                 the captions
  Flickr_8k.trainImages.txt, Flickr_8k.devImages.txt, Flickr_8k.testImages.txt
  CrowdFlowerAnnotations.txt         human judgements (not needed; they become true pairs of test)
From: the authors' form at the University of Illinois (Flickr8k_text.zip, Flickr8k_Dataset.zip).""",
    "visual-genome": """\
Visual Genome (Krishna et al. 2017), version 1.2 or later. In one folder:
  region_descriptions.json, image_data.json
  VG_100K/, VG_100K_2/               the photos
From: the project's page "Visual Genome", Download. --data.coco FOLDER leaves out the images that
COCO models are trained on.""",
    "precomputed": """\
Precomputed features, as VSE++, SCAN and VSRN use them. In one folder, for train, dev and test:
  {split}_ims.npy     (n, F) or (n, regions, F); images once, or once for each of five captions
  {split}_caps.txt    one caption a line, those of one image together
From: the links in the README of those projects; or make them with 'gaussmatch extract'.""",
    "folder": """\
Your own photos. In one folder:
  the photos, there or in images/
  captions.csv (or .tsv, .jsonl)     columns image, caption and, if you like, split
An image may have many rows. Without a split, 80/10/10 is drawn from the names.""",
}
