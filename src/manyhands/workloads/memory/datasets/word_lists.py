"""Names that tests are made of. The order matters: another order gives other tests for the same seed."""

from __future__ import annotations

_FIRST = """
Adela Albert Alice Amos Anton Astrid Barnaby Beatrix Benedict Bridget Callum Carmen Cedric Celeste Clement Cordula
Cosmo Daphne Declan Delia Dexter Dorothea Edgar Edith Elias Elvira Emeric Esther Ezra Fabian Felicity Fergus Fiona
Flora Gareth Gerda Gideon Greta Hannah Harald Hector Hilda Horace Ingrid Irma Isaac Ivo Jasper Joachim Judith Julian
Juniper Kasimir Katrin Kenneth Lambert Leonora Linus Lorna Louis Lucinda Magnus Malcolm Margot Martha Matilda Milo
Miriam Mortimer Nadine Nigel Nora Octavia Odette Orson Oswald Pascal Paula Percival Petra Philippa Quentin Ramona
Reuben Rhoda Roland Rosalind Rufus Sabine Selma Silas Solveig Stella Sylvester Tabitha Theodore Tobias Ulrica Ursula
Valentin Vera Vincent Walter Wanda Wilfred Winifred Xenia Yannick Yvette Zelda
"""

_LAST = """
Abernathy Ashdown Barlowe Blackwood Calloway Carmody Dunmore Eastlake Fairbrother Fenwick Galbraith Greenhalgh
Hargreave Holloway Inchbald Jessop Kettering Lockhart Marchbanks Merriweather Northcote Oakhurst Pemberton Quilliam
Ravenscroft Sandringham Thistlewood Underhill Vanterpool Whitcombe Yardley Zeller
"""

FIRST_NAMES = tuple(_FIRST.split())
LAST_NAMES = tuple(_LAST.split())
