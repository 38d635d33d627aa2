"""State layer: does what was kept between steps still belong to this request?"""
