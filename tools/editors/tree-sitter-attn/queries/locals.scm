; locals.scm: a body sees its parameters and the lets before it; a variant its dims and inputs.
[(variant_body) (function) (normalization) (clause)] @local.scope

(parameters (identifier) @local.definition)
(let name: (identifier) @local.definition)
(emit name: (identifier) @local.definition)
(dim name: (identifier) @local.definition)
(input name: (identifier) @local.definition)
(constant name: (identifier) @local.definition)
(identifier) @local.reference
