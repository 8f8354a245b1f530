[(variant_body) (block) (comment)] @fold
