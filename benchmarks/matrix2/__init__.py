"""VK_NV_cooperative_matrix2, which no kernel of the package uses: what it would come to, for matrix_ceilings.py."""
